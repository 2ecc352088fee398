# SPDX-License-Identifier: Apache-2.0
"""Counting drafts by position: a hand-worked request, and sums."""

from fdspec.core import DraftStats, TokenEvent
from fdspec.entrypoints.openai.draft_report import DraftReport


def report_of(*steps):
    """A report of (new tokens, drafted, accepted) steps; the first one ends the prompt."""
    report = DraftReport()
    index = 0
    for num_tokens, num_drafted, num_accepted in steps:
        draft = DraftStats(num_drafted, num_accepted, "test") if num_drafted else None
        report.count(TokenEvent("a", 0, index, (0,) * num_tokens, draft=draft))
        index += num_tokens
    return report


def test_hand_worked_request():
    report = report_of((1, 0, 0), (3, 4, 2), (1, 2, 0), (1, 0, 0), (3, 2, 2))
    assert report.usage() == {
        "num_steps": 4,
        "num_drafted_tokens": 8,
        "num_accepted_tokens": 4,
        "acceptance_rate": 0.5,
        "mean_tokens_per_step": 2.0,
        "drafted_per_position": [3, 3, 1, 1],
        "accepted_per_position": [2, 2, 0, 0],
        "by_source": {"test": {"num_drafted_tokens": 8, "num_accepted_tokens": 4}},
    }
    assert report.fastdeploy_metrics() == {
        "accepted_tokens": 4,
        "rejected_tokens": 4,
        "accept_ratio": 0.5,
        "average_accept_length": 2.0,
        "accepted_tokens_per_head": [2, 2, 0, 0],
        "accept_ratio_per_head": [0.6667, 0.6667, 0.0, 0.0],
    }


def test_nothing_drafted():
    usage = report_of((1, 0, 0)).usage()
    assert usage["num_steps"] == 0
    assert usage["acceptance_rate"] == usage["mean_tokens_per_step"] == 0.0


def test_merging_adds_position_by_position():
    total = DraftReport()
    total.merge(report_of((1, 0, 0), (2, 1, 1)))
    total.merge(report_of((1, 0, 0), (3, 3, 2)))
    assert total.drafts.drafted == [2, 1, 1]
    assert total.drafts.accepted == [2, 1, 0]
    assert (total.num_steps, total.num_step_tokens) == (2, 5)


def test_trees_count_depths_and_sources():
    report = DraftReport()
    by_source = (("suffix", 5, 1), ("prediction", 2, 1))
    draft = DraftStats(7, 2, "hybrid", 3, by_source)
    report.count(TokenEvent("a", 0, 1, (0, 0, 0), draft=draft))
    report.count(TokenEvent("a", 0, 4, (0,), draft=DraftStats(2, 0, "prediction")))
    usage = report.usage()
    assert (usage["num_drafted_tokens"], usage["num_accepted_tokens"]) == (9, 2)
    assert usage["drafted_per_position"] == [2, 2, 1]
    assert usage["accepted_per_position"] == [1, 1, 0]
    assert usage["by_source"] == {
        "suffix": {"num_drafted_tokens": 5, "num_accepted_tokens": 1},
        "prediction": {"num_drafted_tokens": 4, "num_accepted_tokens": 1},
    }
    assert report.prediction_usage() == {
        "accepted_prediction_tokens": 1,
        "rejected_prediction_tokens": 3,
    }
