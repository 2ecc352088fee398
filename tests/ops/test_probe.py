# SPDX-License-Identifier: Apache-2.0
"""Probes of the machine's limits: they read and multiply as much as they say, at every level."""

from __future__ import annotations

import numpy as np
import pytest

from fdspec.ops import dispatch, probe
from tests.ops.support import running, settings


@pytest.mark.parametrize("num_vectors", [1, 3, 4, 9, 1000])
def test_reads_every_byte_in_every_pass(num_vectors: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, num_vectors * 64, dtype=np.uint8)
    combined = int(np.bitwise_xor.reduce(data.view(np.int32)))
    for isa, num_threads in settings():
        with running(isa, num_threads):
            read_memory = dispatch.kernels().read_memory
            # Reading twice cancels out, three times is once.
            assert [read_memory(data, passes) for passes in (1, 2, 3)] == [combined, 0, combined]


@pytest.mark.parametrize("name", ["run_int8_peak", "run_float_peak", "run_bfloat16_peak"])
def test_every_thread_does_the_operations_that_are_counted(name: str) -> None:
    run = getattr(dispatch.kernels(), name)
    for isa, num_threads in settings():
        with running(isa, 1):
            one = run(1)
        with running(isa, num_threads):
            assert one > 0
            assert run(10) == 10 * num_threads * one


def test_one_rate_for_each_repeat() -> None:
    for rates in (
        probe.read_bandwidth(1 << 16, repeats=3, min_time_s=1e-4),
        probe.int8_peak(repeats=3, min_time_s=1e-4),
        probe.float_peak(repeats=3, min_time_s=1e-4),
        probe.bfloat16_peak(repeats=3, min_time_s=1e-4),
    ):
        assert len(rates) == 3
        assert min(rates) > 0


def test_messages_name_the_argument() -> None:
    with pytest.raises(ValueError, match="num_bytes: must be at least 64, got 63"):
        probe.read_bandwidth(63)
    with pytest.raises(TypeError, match="data: expected dtype uint8, got float32"):
        dispatch.kernels().read_memory(np.ones(64, np.float32), 1)
