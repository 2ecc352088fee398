# SPDX-License-Identifier: Apache-2.0
"""Process-wide settings of the kernels: instruction set, threads, forks, and their messages."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from fdspec import ops
from fdspec.ops import dispatch
from tests.ops.support import ISAS, assert_same_bits, running
from tests.ops.weight_cases import packed

ROOT = Path(__file__).parents[2]


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_levels() -> None:
    assert ops.supported_isas()[0] == "portable"
    assert ops.isa() in ops.supported_isas()
    for name in ops.supported_isas():
        with running(name, 1):
            assert ops.isa() == name
    with pytest.raises(
        ValueError, match='unknown isa "sse9"; allowed: portable, avx2, avx512, amx'
    ):
        ops.set_isa("sse9")


def test_environment_sets_the_level() -> None:
    code = "from fdspec import ops; print(ops.isa())"
    assert run_python(code, FDSPEC_ISA="portable").stdout == "portable\n"
    bad = run_python(code, FDSPEC_ISA="avx1024")
    assert bad.returncode != 0
    assert 'environment variable FDSPEC_ISA: unknown isa "avx1024"' in bad.stderr


def test_default_uses_the_processors_of_the_process() -> None:
    code = (
        "import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1]);"
        "from fdspec import ops; print(ops.num_threads())"
    )
    assert run_python(code).stdout == "1\n"
    assert run_python("from fdspec import ops; print(ops.isa())").stdout.strip() in ISAS


def test_cpu_time_of_a_control_group_limits_the_threads(tmp_path: Path) -> None:
    def granted(group: str) -> float:
        return dispatch.kernels().granted_cpus(str(tmp_path), group)

    pod, container = tmp_path / "pod", tmp_path / "pod" / "container"
    container.mkdir(parents=True)
    assert granted("/pod/container") == 0
    (container / "cpu.max").write_text("max 100000\n")
    assert granted("/pod/container") == 0
    (pod / "cpu.max").write_text("250000 100000\n")
    assert granted("/pod/container") == 2.5
    (container / "cpu.max").write_text("50000 100000\n")
    assert granted("/pod/container") == 0.5
    assert granted("/pod") == 2.5
    # Inside a container its group is the root.
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert granted("/") == 4
    assert granted("/pod") == 2.5
    (tmp_path / "cpu.max").write_text("what is this")
    assert granted("/") == 0


def test_number_of_threads() -> None:
    with running(ops.isa(), 3):
        assert ops.num_threads() == 3
    with pytest.raises(ValueError, match="count: must be at least 1, got 0"):
        ops.set_num_threads(0)


def wake_often() -> None:
    for _ in range(2000):
        ops.wake_threads()


def test_waking_threads_between_and_during_ops() -> None:
    x = np.ones((64, 4096), np.float32)
    with running(ops.isa(), 3):
        expected = ops.swiglu(x)
        waker = threading.Thread(target=wake_often)
        waker.start()
        for _ in range(200):
            assert_same_bits(ops.swiglu(x), expected)
        waker.join()
    with running(ops.isa(), 1):
        ops.wake_threads()
        assert_same_bits(ops.swiglu(x), expected)


def test_without_the_module_the_message_says_how_to_build() -> None:
    code = (
        "import sys; sys.modules['fdspec.ops._core'] = None\n"
        "from fdspec import ops\n"
        "from fdspec.ops.swiglu import reference_swiglu\n"
        "import numpy as np\n"
        "x = np.ones((1, 2), np.float32)\n"
        "assert reference_swiglu(x).shape == (1, 1)\n"
        "ops.swiglu(x)"
    )
    result = run_python(code)
    assert "ImportError: fdspec's compiled kernels cannot be loaded" in result.stderr
    assert "python -m fdspec.ops.build" in result.stderr


def product() -> tuple[np.ndarray, ops.PackedWeight, np.ndarray]:
    weight = packed("wint4", 512, 256)
    x = np.random.default_rng(0).normal(size=(40, 256)).astype(np.float32)
    with running(ops.isa(), 1):
        return x, weight, ops.weight_only_linear(x, weight)


def test_a_forked_child_has_threads_of_its_own() -> None:
    x, weight, expected = product()
    with running(ops.isa(), 4):
        assert_same_bits(ops.weight_only_linear(x, weight), expected)
        child = os.fork()
        if child == 0:
            same = np.array_equal(ops.weight_only_linear(x, weight), expected)
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert_same_bits(ops.weight_only_linear(x, weight), expected)


def test_callers_on_several_threads_take_turns() -> None:
    x, weight, expected = product()
    failures = []

    def work() -> None:
        for _ in range(50):
            if not np.array_equal(ops.weight_only_linear(x, weight), expected):
                failures.append(threading.get_ident())

    with running(ops.isa(), 3):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_the_number_of_threads_may_change_at_any_time() -> None:
    x, weight, expected = product()
    for num_threads in (1, 2, 7, 3, 16, 1, 5):
        with running(ops.isa(), num_threads):
            assert_same_bits(ops.weight_only_linear(x, weight), expected)


def test_the_callers_floating_point_mode_is_kept() -> None:
    """Kernels flush denormals; numpy on the same thread does not, before and after."""
    tiny = np.float32(1e-40)
    x, weight, _ = product()
    for num_threads in (1, 2):
        with running(ops.isa(), num_threads):
            ops.weight_only_linear(x, weight)
        assert tiny * np.float32(1) == tiny
    assert ops.swiglu(np.array([[1, tiny]], np.float32))[0, 0] == 0


def test_kernels_are_found_once() -> None:
    assert dispatch.kernels() is dispatch.kernels()
