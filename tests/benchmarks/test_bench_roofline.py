# SPDX-License-Identifier: Apache-2.0
"""bench_roofline: plans are what they claim to be, figures add up."""

from __future__ import annotations

import json

import numpy as np

from benchmarks import bench_roofline
from benchmarks.offline_runner import OfflineRunner, decode_plan


def test_plans() -> None:
    plan = decode_plan(3, 5, 128)
    assert plan.num_rows == 3 * 6
    assert len({block for s in plan.sequences for block in s.block_ids}) == 3 * 3
    assert all(s.start == 128 and s.num_draft_rows == 5 and s.samples for s in plan.sequences)
    assert decode_plan(2, 0, 64).sequences[0].draft is None


def test_logits_of_a_text_do_not_depend_on_what_follows(smollm2_path) -> None:
    runner = OfflineRunner(smollm2_path, None, 128)
    tokens = np.arange(100, 170, dtype=np.int32)
    whole = runner.logits(tokens).copy()
    assert whole.shape == (70, runner.config.vocab_size)
    np.testing.assert_array_equal(runner.logits(tokens[:7]), whole[:7])
    runner.close()


def test_report(tmp_path, smollm2_path, capsys) -> None:
    output = tmp_path / "roofline.json"
    bench_roofline.main(
        ["--model", str(smollm2_path), "--quantizations", "as-stored", "--rows", "1", "6"]
        + ["--rounds", "2", "--repeats", "1", "--context", "8", "--output", str(output)]
    )
    result = json.loads(output.read_text())["formats"]["as-stored"]
    assert result["one_sequence"]["1"]["ratio_to_one_row"]["median"] == 1.0
    assert result["one_sequence"]["6"]["ratio_to_one_row"] == result["six_rows_to_one"]
    assert result["limit_ms"]["1"]["median"] > 0
    assert "fitted row_cost" in capsys.readouterr().out
