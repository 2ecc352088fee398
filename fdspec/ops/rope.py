# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding (Su et al., https://arxiv.org/abs/2104.09864), half-rotation layout."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels


def rope(query: Array, key: Array, positions: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    """Returns query and key, each head rotated by its row's position.

    With half = head_dim / 2, components i and i + half of a head form a plane (the layout of
    Llama and GPT-NeoX checkpoints, not the interleaved one):
    out[i] = x[i] cos[p, i] - x[i + half] sin[p, i],
    out[i + half] = x[i + half] cos[p, i] + x[i] sin[p, i].

    Args:
        query: [rows, heads, head_dim] float32.
        key: [rows, kv_heads, head_dim] float32.
        positions: [rows] int32, p of each row; 0 .. max_positions - 1.
        cos: [max_positions, head_dim / 2] float32.
        sin: [max_positions, head_dim / 2] float32.

    Returns:
        The rotated query and key, as new arrays.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit, or a position is outside the tables.
    """
    return kernels().rope(query, key, positions, cos, sin)


def reference_rope(
    query: Array, key: Array, positions: Array, cos: Array, sin: Array
) -> tuple[Array, Array]:
    """Rope from its definition, in float64."""
    rows = to_numpy(positions)
    cosines = to_numpy(cos).astype(np.float64)[rows, None, :]
    sines = to_numpy(sin).astype(np.float64)[rows, None, :]

    def rotate(x: Array) -> Array:
        first, second = np.split(to_numpy(x).astype(np.float64), 2, axis=2)
        rotated: NDArray[np.float64] = np.concatenate(
            [first * cosines - second * sines, second * cosines + first * sines], axis=2
        )
        return from_numpy(rotated.astype(np.float32), query)

    return rotate(query), rotate(key)
