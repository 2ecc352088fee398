# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding. Owns the tables of cosines and sines; models say which frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import nn

from fdspec.layers.buffers import as_tensor
from fdspec.ops import rope


class Rotary(nn.Layer):
    """Rotates the halves of each head by position * frequency.

    Args:
        frequencies: [head_dim / 2] float64, radians a position.
        scale: factor of both tables (yarn's attention factor).
        max_positions: length of the tables.
    """

    def __init__(self, frequencies: NDArray[np.float64], scale: float, max_positions: int) -> None:
        super().__init__()
        # In float64, so that far positions lose nothing before the rounding of the result.
        angles = np.outer(np.arange(max_positions, dtype=np.float64), frequencies)
        self._cos = (np.cos(angles) * scale).astype(np.float32)
        self._sin = (np.sin(angles) * scale).astype(np.float32)
        self.register_buffer("cos", as_tensor(self._cos), persistable=False)
        self.register_buffer("sin", as_tensor(self._sin), persistable=False)

    @property
    def max_positions(self) -> int:
        """Positions 0 .. max_positions - 1 can be rotated."""
        return len(self._cos)

    @property
    def tables(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines, [max_positions, head_dim / 2] float32 each."""
        return self._cos, self._sin

    def forward(self, query: Any, key: Any, positions: Any) -> tuple[Any, Any]:
        """Rotate both.

        Args:
            query: [rows, heads, head_dim] float32.
            key: [rows, kv_heads, head_dim] float32.
            positions: [rows] int32, below max_positions.
        """
        return rope(query, key, positions, self._cos, self._sin)
