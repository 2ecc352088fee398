# SPDX-License-Identifier: Apache-2.0
"""Small helpers between numpy and Paddle for layers. Owns no memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray


def as_tensor(array: NDArray[Any]) -> paddle.Tensor:
    """A Paddle tensor over the array's memory, which it keeps alive; uint16 becomes bfloat16."""
    return paddle.Tensor(np.ascontiguousarray(array), zero_copy=True)


def split_columns(x: Any, sizes: tuple[int, ...]) -> list[Any]:
    """Contiguous blocks of columns of a numpy array or Paddle tensor [rows, sum of sizes]."""
    pieces = []
    start = 0
    for size in sizes:
        piece = x[:, start : start + size]
        contiguous = (
            np.ascontiguousarray(piece) if isinstance(x, np.ndarray) else piece.contiguous()
        )
        pieces.append(contiguous)
        start += size
    return pieces
