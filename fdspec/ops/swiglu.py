# SPDX-License-Identifier: Apache-2.0
"""SwiGLU, the gated activation of feed-forward blocks (https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

import numpy as np

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels


def swiglu(gate_up: Array) -> Array:
    """Returns silu(gate) * up, where silu(x) = x / (1 + exp(-x)).

    Args:
        gate_up: [rows, 2 * ffn] float32: the gate in the first half of a row, up in the second.

    Returns:
        [rows, ffn] float32.

    Raises:
        TypeError: the argument is no array or has another dtype.
        ValueError: the number of columns is odd.
    """
    return kernels().swiglu(gate_up)


def reference_swiglu(gate_up: Array) -> Array:
    """Swiglu from its definition, in float64."""
    gate, up = np.split(to_numpy(gate_up).astype(np.float64), 2, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        result = gate / (1.0 + np.exp(-gate)) * up
    return from_numpy(result.astype(np.float32), gate_up)
