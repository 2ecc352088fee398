# SPDX-License-Identifier: Apache-2.0
"""Root-mean-square normalisation of rows (Zhang and Sennrich, https://arxiv.org/abs/1910.07467)."""

from __future__ import annotations

import numpy as np

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """Returns x / sqrt(mean(x^2) + epsilon) * weight for each row.

    Args:
        x: [rows, dim] float32. For a norm over heads, rows = tokens * heads and dim = head_dim.
        weight: [dim] float32.
        epsilon: added to the mean square.

    Returns:
        [rows, dim] float32.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit.
    """
    return kernels().rms_norm(x, weight, epsilon)


def reference_rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """rms_norm from its definition, in float64."""
    values = to_numpy(x).astype(np.float64)
    scale = 1.0 / np.sqrt(np.mean(values**2, axis=1, keepdims=True) + epsilon)
    result = values * scale * to_numpy(weight).astype(np.float64)
    return from_numpy(result.astype(np.float32), x)
