# SPDX-License-Identifier: Apache-2.0
"""Limits of the machine, measured: how fast it reads memory, how fast it multiplies in registers.

For benchmarks, which state how close a kernel comes to them; no op uses them. The loops are
compiled for every instruction set level and run at the one in use, on all threads, as ops do.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from fdspec.ops.dispatch import kernels

_VECTOR_BYTES = 64
_START_ITERATIONS = 1024


def read_bandwidth(num_bytes: int, *, repeats: int = 7, min_time_s: float = 0.01) -> list[float]:
    """Returns how fast num_bytes are read, again and again from front to back.

    What fits into a cache is read from there, so ask for as many bytes as your kernel reads
    before it comes back to the first. A thread reads one contiguous share.

    Args:
        num_bytes: size of what is read; rounded down to multiples of 64.
        repeats: how many figures to return.
        min_time_s: how long one of them is measured at least.

    Returns:
        Bytes a second, one figure for each repeat.

    Raises:
        ValueError: num_bytes is below 64.
    """
    if num_bytes < _VECTOR_BYTES:
        raise ValueError(f"num_bytes: must be at least {_VECTOR_BYTES}, got {num_bytes}")
    size = num_bytes // _VECTOR_BYTES * _VECTOR_BYTES
    # Written to, or every page would be the same page of zeros.
    data = np.full(size, 1, np.uint8)

    def read(passes: int) -> int:
        kernels().read_memory(data, passes)
        return size * passes

    return _rates(read, 1, repeats, min_time_s)


def int8_peak(*, repeats: int = 7, min_time_s: float = 0.01) -> list[float]:
    """Returns how many multiplications plus additions of 8-bit integers are done a second.

    The instructions are those of the integer formats: VNNI at level avx512, tiles at level amx.
    Operands come from registers and the nearest cache, so no matrix product can be faster.

    Args:
        repeats: how many figures to return.
        min_time_s: how long one of them is measured at least.

    Returns:
        Operations a second, one figure for each repeat.
    """
    return _rates(kernels().run_int8_peak, _START_ITERATIONS, repeats, min_time_s)


def float_peak(*, repeats: int = 7, min_time_s: float = 0.01) -> list[float]:
    """Returns how many float32 multiplications plus additions are done a second.

    Args:
        repeats: how many figures to return.
        min_time_s: how long one of them is measured at least.

    Returns:
        Operations a second, one figure for each repeat.
    """
    return _rates(kernels().run_float_peak, _START_ITERATIONS, repeats, min_time_s)


def bfloat16_peak(*, repeats: int = 7, min_time_s: float = 0.01) -> list[float]:
    """Returns how many multiplications plus additions of bfloat16, summed in float32, are done.

    Tiles at level amx; elsewhere bfloat16 is widened, so that this is float_peak.

    Args:
        repeats: how many figures to return.
        min_time_s: how long one of them is measured at least.

    Returns:
        Operations a second, one figure for each repeat.
    """
    return _rates(kernels().run_bfloat16_peak, _START_ITERATIONS, repeats, min_time_s)


def _rates(
    run: Callable[[int], int], iterations: int, repeats: int, min_time_s: float
) -> list[float]:
    """Units a second of `run(iterations)`, which returns the units that it did."""
    while _timed(run, iterations)[1] < min_time_s:
        iterations *= 2
    timings = [_timed(run, iterations) for _ in range(repeats)]
    return [units / seconds for units, seconds in timings]


def _timed(run: Callable[[int], int], iterations: int) -> tuple[int, float]:
    start_s = time.perf_counter()
    units = run(iterations)
    return units, time.perf_counter() - start_s
