# SPDX-License-Identifier: Apache-2.0
"""merge_attention_states: attention over two sets of keys, from the attention over each of them.

What the levels of a cascade are joined by. Reads both states and returns a third.
"""

from __future__ import annotations

import numpy as np

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels


def merge_attention_states(
    output_a: Array, lse_a: Array, output_b: Array, lse_b: Array
) -> tuple[Array, Array]:
    """Joins two attention states: the same queries over two disjoint sets of keys.

    A state over no keys has lse -inf, and its output may hold anything. Two such states give
    output 0 and lse -inf.

    Args:
        output_a: [rows, heads, head_dim] float32, softmax-weighted mean of the values.
        lse_a: [rows, heads] float32, natural logarithm of the sum of exp(score).
        output_b: like output_a.
        lse_b: like lse_a.

    Returns:
        Output and lse over all keys, shaped like output_a and lse_a.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit.
    """
    return kernels().merge_attention_states(output_a, lse_a, output_b, lse_b)


def reference_merge_attention_states(
    output_a: Array, lse_a: Array, output_b: Array, lse_b: Array
) -> tuple[Array, Array]:
    """merge_attention_states from its definition, in float64."""
    outputs = [to_numpy(array).astype(np.float64) for array in (output_a, output_b)]
    lses = [to_numpy(array).astype(np.float64) for array in (lse_a, lse_b)]
    merged, lse = np.zeros(outputs[0].shape), np.full(lses[0].shape, -np.inf)
    for index in np.ndindex(lse.shape):
        largest = max(lses[0][index], lses[1][index])
        if largest == -np.inf:
            continue
        weights = [np.exp(state[index] - largest) for state in lses]
        parts = zip(weights, outputs, strict=True)
        merged[index] = sum(weight * output[index] for weight, output in parts if weight > 0)
        merged[index] /= sum(weights)
        lse[index] = largest + np.log(sum(weights))
    return (
        from_numpy(merged.astype(np.float32), output_a),
        from_numpy(lse.astype(np.float32), output_a),
    )
