# SPDX-License-Identifier: Apache-2.0
"""Makes packed weights: from float values, from ready codes and scales, from several matrices.

Loaders call these once for each matrix. Conversions of codes are exact; only quantize_weight
rounds.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels
from fdspec.ops.weights import GROUP_SIZES, PackedWeight, WeightFormat, packed_layout

_PANEL_CHANNELS = 16
_CACHE_LINE_BYTES = 64


def quantize_weight(weight: Array, weight_format: WeightFormat) -> PackedWeight:
    """Returns a float matrix in a format, rounded to nearest.

    For each group of inputs of each output channel, with scale and minimum rounded to float16:
    8 bits: scale = max|w| / 127. 4 bits: scale = w / -8 for the w of largest magnitude. 4 bits
    with minimum: minimum = min(w), scale = (max(w) - minimum) / 15. Then
    code = round((w - minimum) / scale), clipped to the codes that exist.

    Args:
        weight: [out, in] float32.
        weight_format: what to make.

    Returns:
        The packed matrix; its data is of the kind of `weight`.

    Raises:
        TypeError: `weight` is no float32 array.
        ValueError: it has not two dimensions or is not contiguous.
    """
    out_features, in_features = _matrix_shape(weight, "weight")
    layout = packed_layout(weight_format, in_features, out_features)
    data = _aligned_bytes(layout.total_bytes)
    kernels().quantize_weight(weight, layout, data)
    return PackedWeight(weight_format, in_features, out_features, from_numpy(data, weight))


def pack_weight(
    codes: Array, scales: Array, minima: Array | None, weight_format: WeightFormat
) -> PackedWeight:
    """Returns the matrix scale * code [+ minimum] in an integer format, without loss.

    Args:
        codes: [out, in] integers: -128..127 for 8 bits, -8..7 for 4 bits, 0..15 with minima.
        scales: [out, groups] float32, each exact in float16.
        minima: [out, groups] float32, each exact in float16; None if the format has none.
        weight_format: an integer format; groups = in / group_size rounded up, 1 if that is 0.

    Returns:
        The packed matrix; its data is of the kind of `codes`.

    Raises:
        TypeError: an argument has another dtype.
        ValueError: a shape does not fit, a code is out of range, or a scale or minimum is not
            exact in float16.
    """
    if not weight_format.is_integer:
        raise ValueError(f"weight_format: {weight_format} has no codes; use quantize_weight")
    if (minima is not None) != weight_format.has_minimum:
        needed = "needs" if weight_format.has_minimum else "has no"
        raise ValueError(f"minima: format {weight_format} {needed} minima")
    out_features, in_features = _matrix_shape(codes, "codes")
    layout = packed_layout(weight_format, in_features, out_features)
    data = _aligned_bytes(layout.total_bytes)
    kernels().pack_weight(
        _stored_codes(to_numpy(codes), weight_format),
        _exact_halves(scales, "scales"),
        None if minima is None else _exact_halves(minima, "minima"),
        layout,
        data,
    )
    return PackedWeight(weight_format, in_features, out_features, from_numpy(data, codes))


def unpack_weight(
    weight: PackedWeight,
) -> tuple[NDArray[np.int16], NDArray[np.float32], NDArray[np.float32] | None]:
    """Returns codes, scales and minima of an integer matrix: the inverse of pack_weight.

    Returns:
        codes [out, in] int16, scales [out, groups] float32, minima [out, groups] float32 or None.

    Raises:
        ValueError: the format has no codes.
    """
    if not weight.format.is_integer:
        raise ValueError(f"weight: format {weight.format} has no codes; use dequantize_weight")
    codes = np.empty((weight.out_features, weight.in_features), np.uint8)
    scales = np.empty((weight.out_features, weight.layout.num_groups), np.float32)
    minima = np.empty_like(scales) if weight.format.has_minimum else None
    kernels().unpack_weight(weight.data, weight.layout, codes, scales, minima)
    return codes.astype(np.int16) - weight.format.zero_point, scales, minima


def dequantize_weight(weight: PackedWeight) -> Array:
    """Returns the values of a packed matrix, scale * code [+ minimum] in float32.

    Returns:
        [out, in] float32, of the kind of `weight.data`.
    """
    values = np.empty((weight.out_features, weight.in_features), np.float32)
    kernels().dequantize_weight(weight.data, weight.layout, values)
    return from_numpy(values, weight.data)


def concat_weights(weights: Sequence[PackedWeight]) -> PackedWeight:
    """Returns one matrix with the output channels of several, in order; values do not change.

    Fuses projections of the same input: query, key and value, or gate and up.

    Args:
        weights: at least one; same format and in_features.

    Returns:
        The joined matrix; its data is of the kind of the first.

    Raises:
        ValueError: the list is empty, or formats or in_features differ.
    """
    if not weights:
        raise ValueError("weights: is empty")
    first = weights[0]
    for index, weight in enumerate(weights):
        if (weight.format, weight.in_features) != (first.format, first.in_features):
            raise ValueError(
                f"weights[{index}]: is {weight.format} with {weight.in_features} inputs, the first "
                f"is {first.format} with {first.in_features}"
            )
    if len(weights) == 1:
        return first
    if any(weight.out_features % _PANEL_CHANNELS for weight in weights[:-1]):
        return _concat_channels(weights)
    # Full panels: one after the other, as they are.
    data = _aligned_bytes(sum(weight.layout.total_bytes for weight in weights))
    np.concatenate([to_numpy(weight.data) for weight in weights], out=data)
    return dataclasses.replace(
        first,
        out_features=sum(weight.out_features for weight in weights),
        data=from_numpy(data, first.data),
    )


def packed_layout_fingerprint() -> str:
    """Returns a name for the way in which this build lays packed weights out, hexadecimal.

    Bytes that were packed under one name may be used under the same name only. It is a digest of a
    small matrix in every format, so that no change of layout or rounding can forget it.
    """
    # Neither size fills its last panel or group.
    values = np.sin(np.arange(56 * 328, dtype=np.float32)).reshape(56, 328)
    formats = [WeightFormat(32), WeightFormat(16)]
    for group_size in GROUP_SIZES:
        formats += [WeightFormat(bits, group_size) for bits in (8, 4)]
        formats.append(WeightFormat(4, group_size, has_minimum=True))
    digest = hashlib.blake2b(digest_size=16)
    for weight_format in formats:
        digest.update(quantize_weight(values, weight_format).data)
    return digest.hexdigest()


def reference_quantize_weight(
    weight: NDArray[np.float32], weight_format: WeightFormat
) -> tuple[NDArray[np.int16], NDArray[np.float32], NDArray[np.float32] | None]:
    """Codes, scales and minima that quantize_weight chooses, group by group in numpy."""
    out_features, in_features = weight.shape
    size = weight_format.group_size or max(in_features, 1)
    starts = range(0, in_features, size)
    codes = np.zeros((out_features, in_features), np.int16)
    scales = np.zeros((out_features, len(starts)), np.float32)
    minima = np.zeros_like(scales) if weight_format.has_minimum else None
    lowest, highest = weight_format.code_range
    for row in range(out_features):
        for group, start in enumerate(starts):
            values = weight[row, start : start + size]
            minimum = np.float32(0)
            if weight_format.bits == 8:
                scale = np.abs(values).max() / np.float32(127)
            elif minima is None:
                scale = values[np.argmax(np.abs(values))] / np.float32(-8)
            else:
                minimum = np.float32(np.float16(values.min()))
                minima[row, group] = minimum
                scale = (values.max() - minimum) / np.float32(15)
            scales[row, group] = scale = np.float32(np.float16(scale))
            if scale != 0:
                steps = np.rint((values - minimum) / scale)
                low = -127 if weight_format.bits == 8 else lowest
                codes[row, start : start + size] = np.clip(steps, low, highest)
    return codes, scales, minima


def reference_dequantize(
    codes: NDArray[np.int16],
    scales: NDArray[np.float32],
    minima: NDArray[np.float32] | None,
    group_size: int,
) -> NDArray[np.float32]:
    """scale * code [+ minimum] in float32, from the parts of a matrix."""
    size = group_size or max(codes.shape[1], 1)
    group_of = np.arange(codes.shape[1]) // size
    values = scales[:, group_of] * codes.astype(np.float32)
    return values if minima is None else values + minima[:, group_of]


def _concat_channels(weights: Sequence[PackedWeight]) -> PackedWeight:
    """Joins matrices whose panels are not full, by way of codes or values; exact as well."""
    first = weights[0]
    if not first.format.is_integer:
        values = [to_numpy(dequantize_weight(weight)) for weight in weights]
        return quantize_weight(from_numpy(np.concatenate(values), first.data), first.format)
    parts = [unpack_weight(weight) for weight in weights]
    minima = [part[2] for part in parts if part[2] is not None]
    return pack_weight(
        from_numpy(np.concatenate([part[0] for part in parts]), first.data),
        np.concatenate([part[1] for part in parts]),
        np.concatenate(minima) if minima else None,
        first.format,
    )


def _matrix_shape(array: Array, name: str) -> tuple[int, int]:
    shape = tuple(getattr(array, "shape", ()))
    if len(shape) != 2:
        raise ValueError(f"{name}: expected a matrix [out, in], got shape {list(shape)}")
    return shape[0], shape[1]


def _aligned_bytes(count: int) -> NDArray[np.uint8]:
    """Returns uninitialised bytes that begin at a cache line, so that no vector straddles two."""
    block = np.empty(count + _CACHE_LINE_BYTES, np.uint8)
    start = -block.__array_interface__["data"][0] % _CACHE_LINE_BYTES
    return block[start : start + count]


def _stored_codes(codes: NDArray[np.integer], weight_format: WeightFormat) -> NDArray[np.uint8]:
    if codes.dtype.kind not in "iu":
        raise TypeError(f"codes: expected integers, got {codes.dtype}")
    lowest, highest = weight_format.code_range
    if codes.size and not (lowest <= codes.min() and codes.max() <= highest):
        raise ValueError(
            f"codes: must be in {lowest}..{highest} for {weight_format}, "
            f"got {codes.min()}..{codes.max()}"
        )
    # Wraps around: -8 stored as 0, 7 as 15.
    return np.ascontiguousarray(codes).astype(np.uint8) + np.uint8(weight_format.zero_point)


def _exact_halves(array: Array, name: str) -> NDArray[np.float32]:
    values = np.ascontiguousarray(to_numpy(array))
    if values.dtype != np.float32:
        raise TypeError(f"{name}: expected float32, got {values.dtype}")
    with np.errstate(over="ignore"):
        changed = values.astype(np.float16).astype(np.float32) != values
    if changed.any():
        example = values[changed][0]
        raise ValueError(f"{name}: must be exact in float16, {example!r} is not")
    return values
