# SPDX-License-Identifier: Apache-2.0
"""What bench_ops measures: calls of public ops on a model's shapes, with the bytes and operations
that each call cannot do without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fdspec import ops
from fdspec.kv.cache import KVCache, KVCacheLayout
from fdspec.models import ModelConfig
from fdspec.ops import PackedWeight, RowParams, WeightFormat

BLOCK_SIZE = 64
# Length of a common prefix.
SHARED_TOKENS = 2048
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Case:
    """One kernel on one size.

    Attributes:
        group: which kernel.
        name: which size.
        num_bytes: what a call reads and writes at least.
        num_operations: multiplications plus additions of a call; 0 where they do not count.
        peak: what they are measured against: "int8", "float" or "bfloat16".
        footprint_bytes: what calls 0, 1, 2, ... touch before they come back to the same memory.
        call: run call number i.
    """

    group: str
    name: str
    num_bytes: int
    num_operations: int
    peak: str
    footprint_bytes: int
    call: Callable[[int], object]


@dataclass(frozen=True)
class Weights:
    """All matrices that a token streams, in one format.

    Attributes:
        name: the format.
        layers: for each layer its matrices by name.
        output: the output projection.
    """

    name: str
    layers: Sequence[dict[str, PackedWeight]]
    output: PackedWeight

    @property
    def num_bytes(self) -> int:
        """Bytes of all matrices."""
        matrices = [weight for layer in self.layers for weight in layer.values()]
        return sum(weight.data.nbytes for weight in [*matrices, self.output])


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of a layer's matrices, fused as the model fuses them."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_heads * config.head_dim
    kv_heads = config.num_kv_heads * config.head_dim
    return {
        "qkv": (heads + 2 * kv_heads, hidden),
        "attention output": (hidden, heads),
        "gate and up": (2 * inner, hidden),
        "down": (hidden, inner),
    }


def operations_per_row(config: ModelConfig) -> int:
    """Multiplications plus additions that all matrices cost a row, output projection included."""
    layer = sum(outputs * inputs for outputs, inputs in layer_shapes(config).values())
    return 2 * (config.num_layers * layer + config.vocab_size * config.hidden_size)


def random_weights(config: ModelConfig, format_name: str) -> Weights:
    """Weights of a model's shapes; every layer has the same values in memory of its own.

    Args:
        config: the model.
        format_name: of all matrices, or "layers+output": one for the layers, one for the output.
    """
    layer_name, _, output_name = format_name.partition("+")
    weight_format = WeightFormat.parse(layer_name)
    output_format = WeightFormat.parse(output_name or layer_name)
    first = {
        name: _random_weight(shape, weight_format) for name, shape in layer_shapes(config).items()
    }
    layers = [
        {name: replace(weight, data=_aligned_copy(weight.data)) for name, weight in first.items()}
        for _ in range(config.num_layers)
    ]
    output = _random_weight((config.vocab_size, config.hidden_size), output_format)
    return Weights(format_name, layers, output)


def linear_cases(weights: Weights, rows: int) -> Iterator[Case]:
    """Each matrix by itself, over all layers in turn, and one walk through the whole model."""
    inputs = {
        weight.in_features: random_floats(rows, weight.in_features)
        for weight in [*weights.layers[0].values(), weights.output]
    }

    def case(name: str, matrices: Sequence[PackedWeight]) -> Case:
        weight = matrices[0]
        x = inputs[weight.in_features]
        in_out_bytes = FLOAT_BYTES * rows * (weight.in_features + weight.out_features)
        return Case(
            f"linear {weights.name}",
            f"{name}, {rows} rows",
            weight.data.nbytes + in_out_bytes,
            2 * rows * weight.in_features * weight.out_features,
            _peak_of(weight.format),
            sum(matrix.data.nbytes for matrix in matrices),
            lambda i: ops.weight_only_linear(x, matrices[i % len(matrices)]),
        )

    for name in weights.layers[0]:
        yield case(name, [layer[name] for layer in weights.layers])
    yield case("output projection", [weights.output])
    everything = [weight for layer in weights.layers for weight in layer.values()]
    everything.append(weights.output)

    def walk(_: int) -> None:
        for weight in everything:
            ops.weight_only_linear(inputs[weight.in_features], weight)

    yield Case(
        f"linear {weights.name}",
        f"whole model, {rows} rows",
        weights.num_bytes,
        sum(2 * rows * weight.in_features * weight.out_features for weight in everything),
        _peak_of(weights.output.format),
        weights.num_bytes,
        walk,
    )


def attention_cases(
    config: ModelConfig, contexts: Sequence[int], kv_cache_dtype: str
) -> Iterator[Case]:
    """Decode (1 row), verify (6 rows), a chunk (256 rows), decode of 8 sequences, and of sequences
    that begin with the same blocks.
    """
    case = partial(_attention_case, config, kv_cache_dtype)
    for context in contexts:
        for label, sequences, rows in (
            ("decode", 1, 1),
            ("verify", 1, 6),
            ("chunk", 1, 256),
            ("decode of 8 sequences", 8, 1),
        ):
            yield case(f"{label}, {rows} rows", sequences, rows, context)
    for sequences in (1, 8, 32):
        label = f"decode of {sequences} that share {SHARED_TOKENS}"
        context = SHARED_TOKENS + BLOCK_SIZE
        yield case(label, sequences, 1, context, num_shared=SHARED_TOKENS)


def rowwise_cases(config: ModelConfig, weights: Weights, rows: int) -> Iterator[Case]:
    """The ops beside the matrix products; what they touch stays in a cache, as it does in use."""
    hidden, inner = config.hidden_size, config.intermediate_size
    x, gain = random_floats(rows, hidden), random_floats(hidden)
    gate_up = random_floats(rows, 2 * inner)
    query = random_floats(rows, config.num_heads, config.head_dim)
    key = random_floats(rows, config.num_kv_heads, config.head_dim)
    tables = random_floats(4096, config.head_dim // 2)
    positions = np.arange(rows, dtype=np.int32)
    table = weights.output
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (64, rows)).astype(np.int32)
    row_bytes = table.data.nbytes // config.vocab_size + FLOAT_BYTES * hidden

    def case(group: str, num_bytes: int, call: Callable[[int], object]) -> Case:
        return Case(group, f"{rows} rows", num_bytes, 0, "float", num_bytes, call)

    yield case("rms_norm", 2 * x.nbytes, lambda _: ops.rms_norm(x, gain, 1e-5))
    yield case("swiglu", gate_up.nbytes * 3 // 2, lambda _: ops.swiglu(gate_up))
    yield case(
        "rope",
        2 * (query.nbytes + key.nbytes),
        lambda _: ops.rope(query, key, positions, tables, tables),
    )
    yield replace(
        case("embedding", rows * row_bytes, lambda i: ops.embedding(ids[i % len(ids)], table)),
        footprint_bytes=table.data.nbytes,
    )


def sampling_cases(config: ModelConfig, rows: int) -> Iterator[Case]:
    """Choosing tokens from logits: greedy, with noise only, with top-p and top-k, and logprobs."""
    logits = random_floats(rows, config.vocab_size) * np.float32(3)
    token_ids = np.zeros(rows, np.int32)
    laws = {
        "greedy": RowParams.greedy(rows),
        "temperature 1": RowParams.alike(rows, seed=1),
        "top_p 0.95": RowParams.alike(rows, seed=1, top_p=0.95),
        "top_k 50": RowParams.alike(rows, seed=1, top_k=50),
    }

    def case(name: str, call: Callable[[int], object]) -> Case:
        size = logits.nbytes
        return Case("sampling", f"{name}, {rows} rows", size, 0, "float", size, call)

    def sample(params: RowParams, _: int) -> object:
        return ops.sample_rows(logits, params)

    for name, params in laws.items():
        yield case(name, partial(sample, params))
    yield case("logprobs", lambda _: ops.row_logprobs(logits, token_ids, 5))


def random_floats(*shape: int) -> NDArray[np.float32]:
    """Standard normal values, the same in every run."""
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def _attention_case(
    config: ModelConfig,
    kv_cache_dtype: str,
    label: str,
    sequences: int,
    rows: int,
    context: int,
    *,
    num_shared: int = 0,
) -> Case:
    slots = context + rows
    blocks = -(-slots // BLOCK_SIZE)
    layout = KVCacheLayout(
        config.num_layers, config.num_kv_heads, config.head_dim, BLOCK_SIZE, kv_cache_dtype
    )
    cache = KVCache(layout, sequences * blocks)
    all_slots = np.arange(sequences * blocks * BLOCK_SIZE, dtype=np.int64)
    entries = random_floats(len(all_slots), config.num_kv_heads, config.head_dim)
    for layer in cache.layers:
        ops.append_paged_kv(entries, entries, layer.key, layer.value, all_slots)
    table = np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks)
    table[:, : num_shared // BLOCK_SIZE] = table[0, : num_shared // BLOCK_SIZE]
    query = random_floats(sequences * rows, config.num_heads, config.head_dim)
    splits = np.arange(sequences + 1, dtype=np.int32) * np.int32(rows)
    contexts = np.full(sequences, context, np.int32)
    parents = np.tile(np.arange(-1, rows - 1, dtype=np.int32), sequences)

    def call(i: int) -> object:
        layer = cache.layers[i % len(cache.layers)]
        return ops.cascade_append_attention(
            query, layer.key, layer.value, table, splits, contexts, parents, config.head_dim**-0.5
        )

    token_bytes = layout.block_bytes // (config.num_layers * BLOCK_SIZE)
    read_bytes = (num_shared + sequences * (slots - num_shared)) * token_bytes
    seen = sequences * (rows * context + rows * (rows + 1) // 2)
    return Case(
        f"attention {kv_cache_dtype}",
        f"{label} after {context}",
        read_bytes + 2 * query.nbytes,
        2 * 2 * seen * config.num_heads * config.head_dim,
        "bfloat16",
        read_bytes * config.num_layers,
        call,
    )


def _random_weight(shape: tuple[int, int], weight_format: WeightFormat) -> PackedWeight:
    return ops.quantize_weight(random_floats(*shape) * np.float32(0.05), weight_format)


def _aligned_copy(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy that begins at a cache line, like the original."""
    block = np.empty(data.nbytes + 64, np.uint8)
    start = -block.__array_interface__["data"][0] % 64
    copy = block[start : start + data.nbytes]
    copy[:] = data
    return copy


def _peak_of(weight_format: WeightFormat) -> str:
    is_integer_product = weight_format.is_integer and not weight_format.float_activations
    return "int8" if is_integer_product else "float"
