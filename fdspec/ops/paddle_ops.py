# SPDX-License-Identifier: Apache-2.0
"""The ops as Paddle custom operators `fdspec_<op>`: for to_static, export and Paddle programs.

Same kernels, checks and bits as the functions of fdspec.ops, which call them with less overhead;
every argument must be a Paddle CPU tensor here. The library is built at first use, once for each
version of Paddle. Imports paddle.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import fields
from typing import Any

import numpy as np
import paddle

from fdspec.ops.build import BuildError, build_paddle_ops, headers_digest
from fdspec.ops.dispatch import kernels
from fdspec.ops.row_params import RowParams
from fdspec.ops.verify import Verification
from fdspec.ops.weights import PackedWeight, WeightFormat

logger = logging.getLogger(__name__)

Tensor = Any


@functools.cache
def load() -> tuple[str, ...]:
    """Builds the library if need be and registers its operators with Paddle, once in a process.

    Returns:
        The names of the operators.

    Raises:
        BuildError: the library could not be built, or the kernels are out of date.
    """
    if kernels().headers_digest != headers_digest():
        raise BuildError(
            "the compiled kernels are older than their sources: run `python -m fdspec.ops.build`"
        )
    logger.info("Preparing the Paddle custom ops; the first time this takes half a minute.")
    library = build_paddle_ops()
    names = paddle.base.core.load_op_meta_info_and_register_op(str(library))
    paddle.base.framework.OpProtoHolder.instance().update_op_proto(names)
    return tuple(sorted(names))


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """See fdspec.ops.rms_norm."""
    return _run_single("rms_norm", x, weight, epsilon)


def rope(
    query: Tensor, key: Tensor, positions: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """See fdspec.ops.rope."""
    rotated_query, rotated_key = _run("rope", query, key, positions, cos, sin)
    return rotated_query, rotated_key


def swiglu(gate_up: Tensor) -> Tensor:
    """See fdspec.ops.swiglu."""
    return _run_single("swiglu", gate_up)


def weight_only_linear(
    x: Tensor,
    weight: PackedWeight,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """See fdspec.ops.weight_only_linear."""
    bits, group_size, has_minimum, *features = _layout(weight)
    float_activations = weight.format.float_activations
    attributes = (bits, group_size, has_minimum, float_activations, *features)
    return _run_single("weight_only_linear", x, weight.data, bias, residual, *attributes)


def embedding(token_ids: Tensor, weight: PackedWeight) -> Tensor:
    """See fdspec.ops.embedding."""
    return _run_single("embedding", token_ids, weight.data, *_layout(weight))


def quantize_weight(weight: Tensor, weight_format: WeightFormat) -> PackedWeight:
    """See fdspec.ops.quantize_weight."""
    bits, group_size = weight_format.bits, weight_format.group_size
    data = _run_single("quantize_weight", weight, bits, group_size, weight_format.has_minimum)
    out_features, in_features = weight.shape
    return PackedWeight(weight_format, in_features, out_features, data)


def dequantize_weight(weight: PackedWeight) -> Tensor:
    """See fdspec.ops.dequantize_weight."""
    return _run_single("dequantize_weight", weight.data, *_layout(weight))


def route_experts(
    logits: Tensor,
    bias: Tensor | None,
    num_chosen: int,
    *,
    normalize: bool,
    smallest_sum: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """See fdspec.ops.route_experts."""
    experts, factors = _run("route_experts", logits, bias, num_chosen, normalize, smallest_sum)
    return experts, factors


def expert_mlp(
    x: Tensor,
    experts: Tensor,
    factors: Tensor,
    gate_up: PackedWeight,
    down: PackedWeight,
    *,
    residual: Tensor | None = None,
) -> Tensor:
    """See fdspec.ops.expert_mlp."""
    layouts = [_layout_with_activations(weight) for weight in (gate_up, down)]
    tensors = (x, experts, factors, gate_up.data, down.data, residual)
    return _run_single("expert_mlp", *tensors, *layouts)


def append_paged_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    """See fdspec.ops.append_paged_kv; changes the caches."""
    _run("append_paged_kv", key, value, key_cache, value_cache, slots)


def compact_kv(
    key_cache: Tensor, value_cache: Tensor, source_slots: Tensor, destination_slots: Tensor
) -> None:
    """See fdspec.ops.compact_kv; changes the caches."""
    _run("compact_kv", key_cache, value_cache, source_slots, destination_slots)


def cascade_append_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    row_splits: Tensor,
    context_lens: Tensor,
    parents: Tensor,
    scale: float,
) -> Tensor:
    """See fdspec.ops.cascade_append_attention."""
    tensors = (query, key_cache, value_cache, block_table, row_splits, context_lens, parents)
    return _run_single("cascade_append_attention", *tensors, scale)


def merge_attention_states(
    output_a: Tensor, lse_a: Tensor, output_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """See fdspec.ops.merge_attention_states."""
    output, lse = _run("merge_attention_states", output_a, lse_a, output_b, lse_b)
    return output, lse


def sample_rows(logits: Tensor, params: RowParams) -> Tensor:
    """See fdspec.ops.sample_rows."""
    return _run_single("sample_rows", logits, *_param_tensors(params))


def processed_probabilities(logits: Tensor, params: RowParams) -> Tensor:
    """See fdspec.ops.processed_probabilities."""
    return _run_single("processed_probabilities", logits, *_param_tensors(params))


def row_logprobs(
    logits: Tensor, token_ids: Tensor, num_top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See fdspec.ops.row_logprobs."""
    logprob, rank, top_ids, top_logprobs = _run("row_logprobs", logits, token_ids, num_top)
    return logprob, rank, top_ids, top_logprobs


def ngram_match(
    tokens: Tensor, splits: Tensor, max_draft: Tensor, *, max_ngram: int, min_ngram: int
) -> tuple[Tensor, Tensor]:
    """See fdspec.ops.ngram_match."""
    drafts, draft_splits = _run("ngram_match", tokens, splits, max_draft, max_ngram, min_ngram)
    return drafts, draft_splits


def verify_chain(draft_tokens: Tensor, targets: Tensor, draft_splits: Tensor) -> Verification:
    """See fdspec.ops.verify_chain."""
    return Verification(*_run("verify", draft_tokens, targets, draft_splits, None))


def verify_tree(
    draft_tokens: Tensor, parents: Tensor, targets: Tensor, draft_splits: Tensor
) -> Verification:
    """See fdspec.ops.verify_tree."""
    return Verification(*_run("verify", draft_tokens, targets, draft_splits, parents))


def _run(name: str, *arguments: Any) -> list[Tensor]:
    load()
    return paddle._C_ops._run_custom_op(f"fdspec_{name}", *arguments)


def _run_single(name: str, *arguments: Any) -> Tensor:
    (output,) = _run(name, *arguments)
    return output


def _layout(weight: PackedWeight) -> tuple[int, int, bool, int, int]:
    kind = weight.format
    features = (weight.in_features, weight.out_features)
    return (kind.bits, kind.group_size, kind.has_minimum, *features)


def _layout_with_activations(weight: PackedWeight) -> list[int]:
    bits, group_size, has_minimum, *features = _layout(weight)
    return [bits, group_size, int(has_minimum), int(weight.format.float_activations), *features]


def _param_tensors(params: RowParams) -> tuple[list[Tensor], Tensor | None]:
    """The fields as tensors, unsigned ones by their bits, and the mask."""
    values = [_signed_tensor(getattr(params, field.name)) for field in fields(params)]
    return values[:-1], values[-1]


def _signed_tensor(value: np.ndarray[Any, Any] | None) -> Tensor | None:
    if value is None:
        return None
    if value.dtype in (np.uint32, np.uint64):
        value = value.view(f"i{value.dtype.itemsize}")
    return paddle.to_tensor(value)
