# SPDX-License-Identifier: Apache-2.0
"""Linear layer over a packed weight: the one matrix product of the models."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels
from fdspec.ops.quantize_weight import dequantize_weight
from fdspec.ops.weights import PackedWeight

BLOCK_INPUTS = 32


def weight_only_linear(
    x: Array,
    weight: PackedWeight,
    *,
    bias: Array | None = None,
    residual: Array | None = None,
) -> Array:
    """Returns x @ weight^T [+ bias] [+ residual].

    With an integer format whose activations are not kept in float, each block of 32 inputs of a
    row of `x` is first rounded to 8 bits: scale = max|x| / 127 rounded to 22 significant bits,
    code = round(x * (127 / max|x|)). Products of codes are exact; blocks are added in the order of
    the inputs, in float32. A row of `x` with a value that is not finite or above 2^100 in magnitude
    gives NaN. All other formats multiply in float32, input by input with fma. Either way a row's
    bits depend on that row and the weight alone.

    Args:
        x: [rows, in] float32.
        weight: [out, in] in any format.
        bias: [out] float32, or None.
        residual: [rows, out] float32, or None; added last.

    Returns:
        [rows, out] float32.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit.
    """
    return kernels().weight_only_linear(
        x, weight.data, weight.layout, weight.format.float_activations, bias, residual
    )


def reference_weight_only_linear(
    x: Array,
    weight: PackedWeight,
    *,
    bias: Array | None = None,
    residual: Array | None = None,
) -> Array:
    """weight_only_linear from its definition: rounded activations, sums in float64."""
    values = to_numpy(x)
    if weight.format.is_integer and not weight.format.float_activations:
        values = reference_quantize_rows(values)
    matrix = to_numpy(dequantize_weight(weight)).astype(np.float64)
    result = values.astype(np.float64) @ matrix.T
    if bias is not None:
        result += to_numpy(bias)
    if residual is not None:
        result += to_numpy(residual)
    return from_numpy(result.astype(np.float32), x)


def reference_quantize_rows(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Activations after rounding to 8 bits in blocks of 32 inputs: scale * code."""
    rounded = np.zeros(x.shape, np.float64)
    for start in range(0, x.shape[1], BLOCK_INPUTS):
        block = x[:, start : start + BLOCK_INPUTS]
        largest = np.abs(block).max(axis=1, keepdims=True)
        bits = (largest / np.float32(127)).view(np.uint32)
        scale = ((bits + 2) & ~np.uint32(3)).view(np.float32)
        inverse = np.divide(
            np.float32(127), largest, out=np.zeros_like(largest), where=largest > 2.0**-100
        )
        rounded[:, start : start + BLOCK_INPUTS] = scale.astype(np.float64) * np.rint(
            block * inverse
        )
    return rounded
