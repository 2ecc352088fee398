# SPDX-License-Identifier: Apache-2.0
"""Arrays of either kind, numpy or Paddle CPU tensor, for the references of the ops.

The compiled ops check their arguments and make their outputs themselves
(csrc/bindings/array.h). Never imports paddle: a process that passes a Paddle tensor has it loaded.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

# A numpy array or a Paddle CPU tensor; typed Any because paddle must not be imported here.
Array = Any


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """Returns a numpy array or Paddle CPU tensor as numpy, sharing memory; bfloat16 as uint16.

    Raises:
        TypeError: `array` is neither.
    """
    if isinstance(array, np.ndarray):
        return array
    _require_paddle_tensor(array)
    array = array.detach()
    if str(array.dtype) == "paddle.bfloat16":
        return np.asarray(array.numpy()).view(np.uint16)
    return np.from_dlpack(array)


def from_numpy(array: np.ndarray[Any, Any], like: Array) -> Array:
    """Returns `array` in the kind of `like`, sharing memory; uint16 becomes bfloat16 in Paddle.

    Raises:
        TypeError: `like` is neither a numpy array nor a Paddle tensor.
    """
    if isinstance(like, np.ndarray):
        return array
    _require_paddle_tensor(like)
    return sys.modules["paddle"].Tensor(array, zero_copy=True)


def is_bfloat16(array: Array) -> bool:
    """Returns whether an array holds bfloat16: dtype uint16 in numpy, bfloat16 in Paddle."""
    return str(array.dtype) in ("uint16", "paddle.bfloat16")


def _require_paddle_tensor(array: Array) -> None:
    paddle = sys.modules.get("paddle")
    if paddle is None or not hasattr(paddle, "Tensor") or not isinstance(array, paddle.Tensor):
        kind = type(array).__name__
        raise TypeError(f"expected a numpy array or a paddle CPU tensor, got {kind}")
