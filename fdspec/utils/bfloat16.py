# SPDX-License-Identifier: Apache-2.0
"""bfloat16 for numpy, which has no such type: the bits as uint16. Pure functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even; NaN stays NaN.

    Args:
        values: any shape.

    Returns:
        The same shape, the upper half of each rounded float32.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding could carry a NaN's mantissa over into a number; its quiet bit keeps it a NaN.
    quiet = (bits >> np.uint32(16)) | np.uint32(0x0040)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The exact float32 values.

    Args:
        bits: any shape.

    Returns:
        The same shape.
    """
    return (np.ascontiguousarray(bits, dtype=np.uint32) << np.uint32(16)).view(np.float32)
