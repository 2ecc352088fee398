# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of speculation: their prompts, the cost of drafts, and what they print."""

from benchmarks.bench_propose import METHODS as PROPOSERS
from benchmarks.bench_propose import measure, measure_silence, word_ids
from benchmarks.bench_replay import Answer, Counts, accepted, replay
from benchmarks.bench_spec import METHODS, Result, show
from benchmarks.report import Spread
from benchmarks.workloads import prompts_by_kind
from fdspec import SamplingParams
from fdspec.config import config_from_options
from fdspec.spec_decode.ngram import NgramProposer


def test_prompts_of_every_kind_are_whole():
    kinds = prompts_by_kind()
    assert {"extractive", "rag", "json", "code", "chat"} == kinds.keys()
    assert all(len(prompts) >= 8 for prompts in kinds.values())
    prompts = [prompt for kind in kinds.values() for prompt in kind]
    assert len(set(prompts)) == len(prompts) >= 40
    for name in ("garden", "ferry", "museum", "battery", "recipe"):
        assert not any(f"{{{name}}}" in prompt for prompt in prompts)
    assert "The ferry Aurora crosses" in kinds["extractive"][1]


def test_the_cost_of_a_draft():
    assert len(word_ids(50_000)) == 50_000
    for make in PROPOSERS.values():
        cost = measure(make, 300, num_drafts=20, rounds=2)
        assert cost.propose_us.low > 0.0
        assert cost.follow_us > 0.0


def test_every_method_is_a_configuration():
    for config in METHODS.values():
        loaded = config_from_options({"model": "m", "speculative_config": config})
        assert loaded.warnings == ()


def test_the_table(capsys):
    one = Spread.of([1.0, 2.0, 3.0])
    show({"suffix": {"json": Result(one, one, one, 3.25, 0.5, [(4, 2)], 8)}})
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split() == [
        *("suffix,", "json", "2", "(1", "..", "3)", "2", "(1", "..", "3)"),
        *("2", "(1", "..", "3)", "3.25", "50", "%"),
    ]


def test_a_replayed_answer_is_counted_as_a_real_run_would_be():
    counts = Counts()
    answer = Answer([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 5, 6])
    replay(NgramProposer(2), answer, SamplingParams(), ("r", 0), counts)
    # 1 | 2 | 3 4 (9) | 5 | 6: the first comes with the prompt's step, the last has no draft left.
    assert counts == Counts(num_tokens=6, num_steps=4, num_rows=2, num_accepted=2)
    assert str(counts) == "1.50 (100 %, x1.42)"


def test_accepted_rows_of_a_tree():
    assert accepted([5, 6, 7, 8], [-1, -1, 1, 2], [6, 7, 9]) == [1, 2]
    assert accepted([5, 6], [-1, 0], [6]) == []


def test_silence_is_measured_for_every_method():
    for options in METHODS.values():
        silence = measure_silence(options, 2, 6)
        assert silence.propose_us > 0 and silence.observe_us > 0 and silence.rows < 3
