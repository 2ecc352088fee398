# SPDX-License-Identifier: Apache-2.0
"""Entries of an int8 KV cache: codes, and behind them the float32 scale that multiplies them.

The layout and the rounding in numpy, from their definition; csrc/attention/append_entry.h writes
the same bytes. Pure functions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SCALE_BYTES = 4

# Up to this magnitude an entry is zero, since 127 / magnitude could overflow.
_SMALLEST = np.float32(2.0**-100)


def to_int8_entries(values: NDArray[np.float32]) -> NDArray[np.int8]:
    """Round each row to codes of one scale, its largest magnitude / 127.

    A code is value * (127 / largest magnitude) in float32, to the nearest integer, ties to even.
    A row with an infinity or a NaN has codes 0 and the scale NaN.

    Args:
        values: [..., head_dim].

    Returns:
        [..., head_dim + SCALE_BYTES]: the codes -127..127, then the bytes of the scale.
    """
    values = np.ascontiguousarray(values, dtype=np.float32)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        largest = np.abs(values).max(axis=-1, keepdims=True)
        is_zero = largest <= _SMALLEST
        is_finite = np.isfinite(largest)
        inverse = np.where(is_finite & ~is_zero, np.float32(127) / largest, np.float32(0))
        codes = np.rint(np.where(is_finite, values, 0) * inverse).astype(np.int8)
        scale = np.where(is_zero, np.float32(0), largest / np.float32(127))
    scale = np.where(is_finite, scale, np.float32(np.nan)).astype(np.float32)
    return np.concatenate([codes, scale.view(np.int8)], axis=-1)


def codes_and_scales(entries: NDArray[np.int8]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Take entries apart.

    Args:
        entries: [..., head_dim + SCALE_BYTES].

    Returns:
        Codes [..., head_dim] and scales [...]; a number is its code * its scale.
    """
    scales = np.ascontiguousarray(entries[..., -SCALE_BYTES:]).view(np.float32)
    return entries[..., :-SCALE_BYTES], scales[..., 0]
