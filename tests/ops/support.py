# SPDX-License-Identifier: Apache-2.0
"""Runs one op by its reference or at one instruction set level, with any number of threads."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fdspec import ops

BACKENDS = ("reference", *ops.supported_isas())
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
    functions = importlib.import_module(f"fdspec.ops.{module}")
    if backend == "reference":
        return getattr(functions, f"reference_{name}")(*args, **options)
    with running(backend, 2):
        return getattr(functions, name)(*args, **options)


def assert_same_bits(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Equal shape, dtype and bytes; NaNs of equal bits are equal, +0 and -0 are not."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert actual.tobytes() == expected.tobytes()
