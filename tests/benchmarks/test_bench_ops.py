# SPDX-License-Identifier: Apache-2.0
"""bench_ops on a small model: every case runs; shares of limits follow from their definition."""

from __future__ import annotations

import argparse
import json

import pytest

from benchmarks import bench_ops
from benchmarks.bench_ops import Limits
from benchmarks.op_cases import Case, linear_cases, random_weights
from benchmarks.report import Spread
from fdspec.models import ModelConfig

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    source="test",
    vocab_size=96,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
)


def test_least_time_is_that_of_the_tighter_limit() -> None:
    limits = Limits({100: 50.0, 1000: 10.0}, {"int8": 200.0, "float": 20.0})

    def case(num_operations: int, peak: str, footprint: int) -> Case:
        return Case("", "", 100, num_operations, peak, footprint, lambda i: None)

    assert limits.least_time_s(case(100, "int8", 60)) == (2.0, "memory")
    assert limits.least_time_s(case(100, "float", 60)) == (5.0, "float")
    assert limits.least_time_s(case(100, "int8", 101)) == (10.0, "memory")
    assert limits.least_time_s(case(4000, "int8", 9999)) == (20.0, "int8")


def test_a_walk_goes_through_all_weights() -> None:
    weights = random_weights(CONFIG, "wint4+wint8_g32")
    assert str(weights.output.format) == "wint8_g32"
    per_layer = (64 + 64) * 64 + 64 * 64 + 2 * 128 * 64 + 128 * 64
    # 5 bits a weight in layers, 8.5 in the output projection.
    assert weights.num_bytes == 2 * per_layer * 5 // 8 + 96 * 64 * 17 // 16
    *_, walk = linear_cases(weights, 3)
    assert walk.num_bytes == weights.num_bytes
    assert walk.num_operations == 2 * 3 * (2 * per_layer + 96 * 64)


def test_runs_and_writes_every_case(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bench_ops, "read_model_config", lambda path: CONFIG)
    monkeypatch.setattr(bench_ops, "FOOTPRINTS_BYTES", (1 << 12, 1 << 16))
    output = tmp_path / "ops.json"
    bench_ops.main(
        ["--rows", "1", "3", "--formats", "wint4", "bfloat16", "--contexts", "0", "70"]
        + ["--rounds", "2", "--min-time-ms", "0.01", "--output", str(output)]
    )
    report = json.loads(output.read_text())
    kernels = report["kernels"]
    assert len(kernels) == 2 * (2 * 6 + 4 + 5) + 2 * (2 * 4 + 3)
    assert all(kernel["share_of_limit"]["median"] > 0 for kernel in kernels)
    by_group = {kernel["group"] for kernel in kernels}
    assert by_group >= {"linear wint4", "linear bfloat16", "sampling", "swiglu"}
    assert by_group >= {"attention bfloat16", "attention int8"}
    printed = capsys.readouterr().out
    assert all(f"{kernel['group']}: {kernel['name']}" in printed for kernel in kernels)


def test_plot(tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="the extra bench is not installed")
    options = argparse.Namespace(formats=["wint4"], rows=[1], contexts=[8], groups=["linear"])
    cases, token_bytes = bench_ops.build_cases(CONFIG, options)
    figures, limits = bench_ops.measure(cases, [token_bytes], 1, 1e-5)
    report = {
        "machine": {"processor": "test"},
        "num_threads": 1,
        "token_bytes": token_bytes,
        "read_gigabytes_per_s": {token_bytes: Spread.of([1.0])},
        "peak_gigaoperations_per_s": {"int8": Spread.of([100.0])},
    }
    assert len(limits) == 1
    bench_ops.plot(report, figures, tmp_path / "ops.png")
    assert (tmp_path / "ops.png").read_bytes().startswith(b"\x89PNG")
