# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts: which experts a row goes to, and what they make of it together."""

from __future__ import annotations

import numpy as np

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels
from fdspec.ops.swiglu import reference_swiglu
from fdspec.ops.weight_only_linear import reference_weight_only_linear
from fdspec.ops.weights import PackedWeight


def route_experts(
    logits: Array,
    bias: Array | None,
    num_chosen: int,
    *,
    normalize: bool,
    smallest_sum: float = 0.0,
) -> tuple[Array, Array]:
    """Returns the experts of each row and their factors.

    With p = softmax(logits), the experts with the largest p + bias are chosen; of equal ones the
    one with the lowest number. The factor of a chosen expert is its p, without the bias, which
    steers the choice only (https://arxiv.org/abs/2408.15664).

    Args:
        logits: [rows, num_experts] float32; at most 512 experts.
        bias: [num_experts] float32, or None.
        num_chosen: experts of a row, 1 .. num_experts.
        normalize: divide the factors of a row by their sum.
        smallest_sum: divide by this instead if the sum is below.

    Returns:
        Experts [rows, num_chosen] int32, the best first, and factors [rows, num_chosen] float32.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape or num_chosen does not fit.
    """
    experts, factors = kernels().route_experts(logits, bias, num_chosen, normalize, smallest_sum)
    return experts, factors


def reference_route_experts(
    logits: Array,
    bias: Array | None,
    num_chosen: int,
    *,
    normalize: bool,
    smallest_sum: float = 0.0,
) -> tuple[Array, Array]:
    """route_experts from its definition, in float64."""
    values = to_numpy(logits).astype(np.float64)
    weights = np.exp(values - values.max(axis=1, keepdims=True, initial=-np.inf))
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    scores = probabilities if bias is None else probabilities + to_numpy(bias)
    experts = np.argsort(-scores, axis=1, kind="stable")[:, :num_chosen]
    factors = np.take_along_axis(probabilities, experts, axis=1)
    if normalize:
        factors = factors / np.maximum(factors.sum(axis=1, keepdims=True), smallest_sum)
    return (
        from_numpy(experts.astype(np.int32), logits),
        from_numpy(factors.astype(np.float32), logits),
    )


def expert_mlp(
    x: Array,
    experts: Array,
    factors: Array,
    gate_up: PackedWeight,
    down: PackedWeight,
    *,
    residual: Array | None = None,
) -> Array:
    """Returns [residual +] the sum over a row's experts of factor * down(swiglu(gate_up(x))).

    The weights of all experts stand one below the other in two matrices. Rows are grouped by
    expert, so that its weights are read once for all of them; products are those of
    `weight_only_linear`, with its rounding of activations. Results are added with fma, in the order
    of `experts`, to the residual; so a row's bits depend on that row alone.

    Args:
        x: [rows, hidden] float32.
        experts: [rows, num_chosen] int32, 0 .. num_experts - 1, no two of a row alike.
        factors: [rows, num_chosen] float32.
        gate_up: [num_experts * 2 * ffn, hidden]: for each expert its gate, then up.
        down: [num_experts * hidden, ffn].
        residual: [rows, hidden] float32, or None.

    Returns:
        [rows, hidden] float32.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit, an expert does not exist or stands twice in a row, or
            hidden or 2 * ffn is no multiple of 16.
    """
    return kernels().expert_mlp(
        x,
        experts,
        factors,
        gate_up.data,
        gate_up.layout,
        gate_up.format.float_activations,
        down.data,
        down.layout,
        down.format.float_activations,
        residual,
    )


def reference_expert_mlp(
    x: Array,
    experts: Array,
    factors: Array,
    gate_up: PackedWeight,
    down: PackedWeight,
    *,
    residual: Array | None = None,
) -> Array:
    """expert_mlp from its definition: all experts for every row, sums in float64."""
    values = to_numpy(x)
    rows, hidden = values.shape
    ffn = down.in_features
    num_experts = down.out_features // hidden
    # Every expert for every row; only the chosen ones count below.
    inner = to_numpy(reference_weight_only_linear(values, gate_up))
    gated = reference_swiglu(inner.reshape(rows * num_experts, 2 * ffn))
    total = np.zeros((rows, hidden)) if residual is None else to_numpy(residual).astype(np.float64)
    outer = reference_weight_only_linear(gated, down)
    outer = outer.reshape(rows, num_experts, num_experts, hidden)
    chosen = to_numpy(experts)
    each = np.arange(rows)
    for choice in range(chosen.shape[1]):
        expert = chosen[:, choice]
        total = total + to_numpy(factors)[:, choice, None] * outer[each, expert, expert]
    return from_numpy(total.astype(np.float32), x)
