# SPDX-License-Identifier: Apache-2.0
"""bench_latency --sampling: every law beside greedy decoding, and the parts of a step add up."""

from __future__ import annotations

import json

import pytest

from benchmarks import bench_latency
from benchmarks.sampling_price import LAWS
from fdspec import ops


def test_report(tmp_path, smollm2_path, capsys) -> None:
    config, output = tmp_path / "config.yaml", tmp_path / "price.json"
    config.write_text(f"model: {smollm2_path}\nmax_model_len: 128\n")
    num_threads = ops.num_threads()
    try:
        bench_latency.main(
            ["--sampling", "--config", str(config), "--batch-sizes", "2", "--rounds", "2"]
            + ["--max-tokens", "5", "--threads", "1", "--cpu-time", "--output", str(output)]
        )
    finally:
        ops.set_num_threads(num_threads)
    report = json.loads(output.read_text())
    prices = report["prices"]["2"]
    assert report["num_threads"] == 1
    assert list(prices) == ["greedy", *LAWS]
    assert prices["greedy"]["step_ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    for price in prices.values():
        parts = [price[part]["median"] for part in ("model_us", "verify_us", "rest_us")]
        assert min(parts) > 0
        assert sum(parts) == pytest.approx(price["step_us"]["median"], rel=0.2)
    table = capsys.readouterr().out
    assert "step / greedy step" in table and "2: T 1, top_k 50" in table
