# SPDX-License-Identifier: Apache-2.0
"""bench_interference: every mode runs, and ratios belong to their figures."""

from __future__ import annotations

import json

import pytest

from benchmarks import bench_interference


def test_report(tmp_path, smollm2_path, capsys) -> None:
    output = tmp_path / "interference.json"
    bench_interference.main(
        ["--model", str(smollm2_path), "--streams", "2", "--context", "8", "--prompt", "40"]
        + ["--stream-tokens", "200", "--steps", "3", "--rounds", "1", "--output", str(output)]
    )
    modes = json.loads(output.read_text())["modes"]
    assert list(modes) == ["whole", "chunks", "limited"]
    for mode in modes.values():
        ratio = mode["during_ms"]["median"] / mode["before_ms"]["median"]
        assert mode["gap_ratio"]["median"] == pytest.approx(ratio)
    usual_ms = modes["chunks"]["before_ms"]["median"]
    assert modes["limited"]["options"]["max_step_ms"] == pytest.approx(1.7 * usual_ms)
    printed = capsys.readouterr().out
    assert "p99 / p50" in printed and "limited" in printed
