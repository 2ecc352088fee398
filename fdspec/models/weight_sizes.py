# SPDX-License-Identifier: Apache-2.0
"""What the weights of a model take, worked out from its configuration. Reads no weights.

Owns how ranks would divide the matrices: outputs of query, key, value, gate, up and the vocabulary,
inputs of the projections after them; routers, norms and tables are on every rank. Tests compare one
rank with loaded models. Never imports paddle; the dry run calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from fdspec.core.errors import ConfigError
from fdspec.models.config import ModelConfig
from fdspec.models.weight_formats import WeightFormats
from fdspec.models.weights import Role, format_of, parse_format
from fdspec.ops.weights import WeightFormat, packed_layout

_FLOAT_BYTES = 4


class _Split(Enum):
    """What of a matrix the ranks divide."""

    OUTPUTS = "outputs"
    INPUTS = "inputs"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class WeightPart:
    """The weights of one kind.

    Attributes:
        name: of the part, for people.
        num_weights: in the whole model.
        num_used: of them, how many take part in the computation of one token.
        rank_bytes: memory on each rank, packed.
    """

    name: str
    num_weights: int
    num_used: int
    rank_bytes: int


@dataclass(frozen=True, slots=True)
class _Matrix:
    part: str
    role: Role
    shape: tuple[int, int]
    split: _Split
    copies: int = 1
    used: int = 1
    divides: int = 0
    """What must be a multiple of the ranks; 0: the divided side itself."""


def weight_parts(
    config: ModelConfig, formats: WeightFormats, *, num_ranks: int, max_model_len: int
) -> tuple[WeightPart, ...]:
    """Parts of a model's weights, the same on every rank.

    Args:
        config: the model.
        formats: as `weight_formats` gives them; None counts as bfloat16.
        num_ranks: processes that divide the model.
        max_model_len: positions of the rotary tables.

    Raises:
        ConfigError: the model cannot be divided so.
    """
    asked = [
        None if name is None else parse_format(name) for name in (formats.dense, formats.experts)
    ]
    parts: dict[str, WeightPart] = {}
    for matrix in _matrices(config, num_ranks):
        weight_format = format_of(matrix.role, WeightFormat(16), *asked)
        rank_bytes = matrix.copies * _rank_bytes(matrix, weight_format, num_ranks, config)
        size = matrix.shape[0] * matrix.shape[1]
        _add(parts, WeightPart(matrix.part, matrix.copies * size, matrix.used * size, rank_bytes))
    vectors = _vector_values(config, num_ranks)
    tables = max_model_len * config.head_dim
    _add(parts, WeightPart("norms and biases", vectors, vectors, vectors * _FLOAT_BYTES))
    _add(parts, WeightPart("rotary tables", 0, 0, tables * _FLOAT_BYTES))
    return tuple(parts.values())


def mtp_layer_bytes(config: ModelConfig, quantization: str | None) -> int:
    """What the layer for multi-token prediction takes that a checkpoint brings along.

    Args:
        config: of the checkpoint; the layer has an MLP of its width instead of experts.
        quantization: format of its matrices; None counts as bfloat16.
    """
    layer = replace(config, experts=None, num_layers=1)
    formats = WeightFormats(quantization, quantization)
    own = ("attention", "MLP", "norms and biases")
    parts = weight_parts(layer, formats, num_ranks=1, max_model_len=1)
    total = sum(part.rank_bytes for part in parts if part.name in own)
    weight_format = WeightFormat(16) if quantization is None else parse_format(quantization)
    size = config.hidden_size
    # It joins embedding and hidden state, each behind a norm; the final norm is the model's.
    projections = 2 * int(packed_layout(weight_format, size, size).total_bytes)
    return total + projections + size * _FLOAT_BYTES


def kv_heads_of_rank(config: ModelConfig, num_ranks: int) -> int:
    """Key-value heads that a rank holds; ranks share one where there are more of them than heads.

    Raises:
        ConfigError: the heads cannot be divided so.
    """
    heads, kv_heads = config.num_heads, config.num_kv_heads
    if heads % num_ranks or (kv_heads % num_ranks and num_ranks % kv_heads):
        raise ConfigError(
            f"tensor_parallel_size {num_ranks} divides neither the {heads} heads nor the "
            f"{kv_heads} key-value heads of {config.architecture} evenly"
        )
    return max(kv_heads // num_ranks, 1)


def _matrices(config: ModelConfig, num_ranks: int) -> Iterator[_Matrix]:
    hidden, head_dim = config.hidden_size, config.head_dim
    vocabulary = (config.vocab_size, hidden)
    # A token reads one row of it, but all of it where it is the output projection, too.
    used = int(config.tie_word_embeddings)
    yield _Matrix("embedding", Role.VOCABULARY, vocabulary, _Split.OUTPUTS, used=used)
    if not config.tie_word_embeddings:
        yield _Matrix("output projection", Role.VOCABULARY, vocabulary, _Split.OUTPUTS)
    query = config.num_heads * head_dim
    # A rank's matrix holds its query heads, and the key and value heads that these need.
    key_value = 2 * kv_heads_of_rank(config, num_ranks) * num_ranks * head_dim
    layers = config.num_layers
    yield _Matrix(
        "attention",
        Role.PROJECTION,
        (query + key_value, hidden),
        _Split.OUTPUTS,
        layers,
        layers,
        config.num_heads,
    )
    yield _Matrix(
        "attention",
        Role.PROJECTION,
        (hidden, query),
        _Split.INPUTS,
        layers,
        layers,
        config.num_heads,
    )
    experts = config.experts
    num_mixed = 0 if experts is None else len(experts.layers)
    num_plain = layers - num_mixed
    if num_plain:
        yield from _mlp(
            "MLP", Role.PROJECTION, hidden, config.intermediate_size, num_plain, num_plain
        )
    if experts is None or not num_mixed:
        return
    yield _Matrix(
        "routers",
        Role.ROUTER,
        (experts.num_experts, hidden),
        _Split.NOTHING,
        num_mixed,
        num_mixed,
    )
    if experts.num_shared:
        width = experts.num_shared * experts.intermediate_size
        yield from _mlp("shared experts", Role.PROJECTION, hidden, width, num_mixed, num_mixed)
    yield from _mlp(
        "experts",
        Role.EXPERT,
        hidden,
        experts.intermediate_size,
        num_mixed * experts.num_experts,
        num_mixed * experts.num_chosen,
    )


def _mlp(
    part: str, role: Role, hidden: int, width: int, copies: int, used: int
) -> Iterator[_Matrix]:
    yield _Matrix(part, role, (2 * width, hidden), _Split.OUTPUTS, copies, used, width)
    yield _Matrix(part, role, (hidden, width), _Split.INPUTS, copies, used, width)


def _rank_bytes(
    matrix: _Matrix, weight_format: WeightFormat, num_ranks: int, config: ModelConfig
) -> int:
    outputs, inputs = matrix.shape
    if matrix.split is _Split.OUTPUTS:
        if matrix.role is not Role.VOCABULARY:
            _expect_divisible(matrix, num_ranks, config)
        # The last rank's share of a vocabulary may be shorter.
        outputs = -(-outputs // num_ranks)
    elif matrix.split is _Split.INPUTS:
        _expect_divisible(matrix, num_ranks, config)
        inputs //= num_ranks
    return int(packed_layout(weight_format, inputs, outputs).total_bytes)


def _expect_divisible(matrix: _Matrix, num_ranks: int, config: ModelConfig) -> None:
    if matrix.divides % num_ranks:
        raise ConfigError(
            f"tensor_parallel_size {num_ranks} does not divide the {matrix.part} of "
            f"{config.architecture} evenly ({matrix.divides})"
        )


def _vector_values(config: ModelConfig, num_ranks: int) -> int:
    """Values of norms and biases; small, so that no rank divides them here."""
    hidden, layers, experts = config.hidden_size, config.num_layers, config.experts
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    per_layer = 2 * hidden
    per_layer += 2 * config.head_dim if config.qk_norm else 0
    per_layer += heads if config.qkv_bias else 0
    per_layer += hidden if config.output_bias else 0
    total = hidden + layers * per_layer
    num_mixed = 0 if experts is None else len(experts.layers)
    widths = [config.intermediate_size] * (layers - num_mixed)
    if experts is not None:
        total += num_mixed * experts.num_experts if experts.has_bias else 0
        if experts.num_shared:
            widths += [experts.num_shared * experts.intermediate_size] * num_mixed
    if config.mlp_bias:
        total += sum(2 * width + hidden for width in widths)
    return total


def _add(parts: dict[str, WeightPart], more: WeightPart) -> None:
    known = parts.get(more.name)
    if known is not None:
        more = WeightPart(
            more.name,
            known.num_weights + more.num_weights,
            known.num_used + more.num_used,
            known.rank_bytes + more.rank_bytes,
        )
    parts[more.name] = more
