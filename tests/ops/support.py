# SPDX-License-Identifier: Apache-2.0
"""Runs one op on any backend: its reference, an instruction set level, or Paddle's custom op."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fdspec import ops

ISAS = ("portable", "avx2", "avx512", "amx")
HAS_PADDLE = importlib.util.find_spec("paddle") is not None
KERNEL_BACKENDS = (*ops.supported_isas(), *(["paddle"] if HAS_PADDLE else []))
BACKENDS = ("reference", *KERNEL_BACKENDS)
THREAD_COUNTS = (1, 2, 5)


@contextmanager
def running(isa: str, num_threads: int) -> Iterator[None]:
    """Kernels of this level on so many threads, until the block ends."""
    before = ops.isa(), ops.num_threads()
    ops.set_isa(isa)
    ops.set_num_threads(num_threads)
    try:
        yield
    finally:
        ops.set_isa(before[0])
        ops.set_num_threads(before[1])


def settings() -> list[tuple[str, int]]:
    """Every level with every number of threads; all must give the same bits."""
    return [(isa, threads) for isa in ops.supported_isas() for threads in THREAD_COUNTS]


def call(backend: str, module: str, name: str, *args: Any, **options: Any) -> Any:
    """Call `name` of fdspec.ops.<module> on a backend."""
    if backend == "paddle":
        return _call_custom_op(name, *args, **options)
    functions = importlib.import_module(f"fdspec.ops.{module}")
    if backend == "reference":
        return getattr(functions, f"reference_{name}")(*args, **options)
    with running(backend, 2):
        return getattr(functions, name)(*args, **options)


def _call_custom_op(name: str, *args: Any, **options: Any) -> Any:
    """The op through Paddle's dispatcher; arrays go in and come out as they do elsewhere."""
    from fdspec.ops import paddle_ops

    takes_arrays = any(isinstance(argument, np.ndarray) for argument in args)
    tensors = [_to_paddle(argument) for argument in args]
    keywords = {key: _to_paddle(value) for key, value in options.items()}
    result = getattr(paddle_ops, name)(*tensors, **keywords)
    return _to_numpy(result) if takes_arrays else result


def _to_paddle(value: Any) -> Any:
    """Tensors that share the memory of arrays, so that an op may change it."""
    import paddle

    if isinstance(value, ops.PackedWeight):
        return dataclasses.replace(value, data=_to_paddle(value.data))
    if not isinstance(value, np.ndarray):
        return value
    return paddle.Tensor(value, zero_copy=True) if value.size else _empty_tensor(value)


def _empty_tensor(array: np.ndarray[Any, Any]) -> Any:
    import paddle

    name = "bfloat16" if array.dtype == np.uint16 else str(array.dtype)
    return paddle.empty(array.shape, name)


def _to_numpy(value: Any) -> Any:
    if isinstance(value, ops.PackedWeight):
        return dataclasses.replace(value, data=_to_numpy(value.data))
    if isinstance(value, tuple):
        parts = [_to_numpy(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value.numpy() if hasattr(value, "numpy") else value


def assert_same_bits(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Equal shape, dtype and bytes; NaNs of equal bits are equal, +0 and -0 are not."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert actual.tobytes() == expected.tobytes()
