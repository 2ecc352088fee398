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


@pytest.mark.full
@pytest.mark.timeout(600)
def test_split(tmp_path, smollm2_path, capsys) -> None:
    output = tmp_path / "split.json"
    bench_interference.main(
        ["--split", "--model", str(smollm2_path), "--streams", "2", "--context", "8"]
        + ["--prompt", "100", "--stream-tokens", "200", "--every", "0.5", "--seconds", "1.5"]
        + ["--rounds", "1", "--chunk", "16", "--output", str(output)]
    )
    servers = json.loads(output.read_text())["servers"]
    assert [(name, found["chunk"]) for name, found in servers.items()] == [
        ("split", None),
        ("mixed", 512),
        ("same_ttft", 16),
    ]
    assert servers["split"]["split_over_this"]["median"] == 1.0
    for found in servers.values():
        ratio = servers["split"]["p99_gap_ms"]["median"] / found["p99_gap_ms"]["median"]
        assert found["split_over_this"]["median"] == pytest.approx(ratio)
        assert found["first_token_ms"]["median"] > 0
    assert "mixed, chunk 16" in capsys.readouterr().out


def test_sizes_of_both_forms(capsys) -> None:
    with pytest.raises(SystemExit):
        bench_interference.parse_arguments(["--every", "x"])
    assert "--every" in capsys.readouterr().err
    options = bench_interference.parse_arguments(["--split"])
    assert (options.streams, options.prompt) == (4, 1024)
    assert bench_interference.parse_arguments([]).prompt == 4096
