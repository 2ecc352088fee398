# SPDX-License-Identifier: Apache-2.0
"""bench_handoff: a prompt arrives by every transport, and its cost is what it says."""

from __future__ import annotations

import json

import pytest

from benchmarks import bench_handoff


def test_report(tmp_path, smollm2_path, capsys) -> None:
    output = tmp_path / "handoff.json"
    bench_handoff.main(
        ["--model", str(smollm2_path), "--prompt", "40", "--chunk", "16", "--block-size", "16"]
        + ["--rounds", "1", "--threads", "1", "--output", str(output)]
    )
    handoffs = json.loads(output.read_text())["handoffs"]
    ways = [(found["transport"], found["overlap"]) for found in handoffs]
    assert ways == [("shm", False), ("shm", True), ("zmq-tcp", False), ("zmq-tcp", True)]
    for found in handoffs:
        # Three blocks of 16 tokens: 30 layers, 3 heads of 64 keys and values in bfloat16.
        assert found["num_bytes"] == 3 * 16 * 30 * 3 * 64 * 2 * 2
        share = 100 * found["cost_ms"]["median"] / found["prefill_ms"]["median"]
        assert found["share_percent"]["median"] == pytest.approx(share)
    printed = capsys.readouterr().out
    assert "% of prefill" in printed and "shm, layer by layer" in printed


def test_a_prefill_process_that_ends(tmp_path) -> None:
    with pytest.raises(SystemExit, match="the prefill process ended with status 1"):
        bench_handoff.main(["--model", str(tmp_path / "nothing"), "--rounds", "1"])
