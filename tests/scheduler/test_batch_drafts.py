# SPDX-License-Identifier: Apache-2.0
"""Batch scheduler without a model: who may draft, how much, and what becomes of the blocks."""

import numpy as np
import pytest

from fdspec.core import Abort, Draft
from tests.scheduler.batch_steps import chain, make, rows, start, step, submit, verdicts


def test_only_decoding_sequences_are_drafted_for():
    scheduler, _ = make(max_num_batched_tokens=8)
    start(scheduler, submit("a", 3), submit("b", 20))
    contexts = scheduler.draft_contexts()
    assert [c.sequence_id for c in contexts] == [("a", 0)]
    assert contexts[0].tokens.tolist() == [1, 2, 3, 9] and contexts[0].num_prompt == 3
    plan = scheduler.plan([chain("a", 2), chain("b", 2), chain("gone", 2)])
    assert rows(plan) == {"a": (1, 2), "b": (5, 0)}


@pytest.mark.parametrize(
    ("params", "limits", "num_prompt", "expected"),
    [
        ({"max_tokens": 8}, {}, 3, 6),
        ({"max_tokens": 2}, {}, 3, 0),
        ({"max_tokens": 3}, {}, 3, 1),
        ({"max_tokens": 8}, {"max_model_len": 11}, 3, 6),
        ({"max_draft_tokens": 2}, {}, 3, 2),
        ({"max_draft_tokens": 0}, {}, 3, 0),
        ({}, {"max_draft_rows": 4}, 3, 4),
        ({}, {"max_draft_rows": 0}, 3, 0),
        ({}, {"max_num_batched_tokens": 4}, 3, 3),
    ],
)
def test_limits_of_a_draft(params, limits, num_prompt, expected):
    scheduler, _ = make(**limits)
    start(scheduler, submit("a", num_prompt, **params))
    contexts = scheduler.draft_contexts()
    assert [c.max_draft for c in contexts] == ([expected] if expected else [])
    plan = scheduler.plan([chain("a", 30)])
    assert rows(plan)["a"] == (1, expected)


def test_drafts_stop_at_a_batch_size():
    scheduler, _ = make(disable_drafts_at=2)
    start(scheduler, submit("a", 3))
    assert len(scheduler.draft_contexts()) == 1
    start(scheduler, submit("b", 3))
    assert scheduler.draft_contexts() == []
    assert rows(scheduler.plan([chain("a", 2)])) == {"a": (1, 0), "b": (1, 0)}


def test_accepted_drafts_extend_the_sequence():
    scheduler, pool = make()
    start(scheduler, submit("a", 3))
    plan, events = step(scheduler, [chain("a", 4)], accept=2)
    assert events[0].tokens == (7, 7, 9) and events[0].index == 1
    assert events[0].draft is not None
    assert (events[0].draft.num_drafted, events[0].draft.num_accepted) == (4, 2)
    plan = scheduler.plan([])
    assert plan.sequences[0].history.tolist() == [1, 2, 3, 9, 7, 7, 9]
    assert plan.sequences[0].start == 6


def test_budget_is_shared_fairly_and_goes_round():
    scheduler, _ = make(max_num_batched_tokens=8, max_num_seqs=3)
    start(scheduler, submit("a", 1), submit("b", 1), submit("c", 1))
    drafts = [chain(name, 6) for name in "abc"]
    granted = []
    for _ in range(3):
        plan = scheduler.plan(drafts)
        assert plan.num_rows == 8
        granted.append([s.num_draft_rows for s in plan.sequences])
    assert sorted(granted) == [[1, 2, 2], [2, 1, 2], [2, 2, 1]]


def test_drafts_take_at_most_half_of_what_prompts_could_use():
    scheduler, _ = make(max_num_batched_tokens=16)
    start(scheduler, submit("a", 1, max_tokens=50))
    scheduler.add(submit("b", 60))
    assert rows(scheduler.plan([chain("a", 30)])) == {"a": (1, 7), "b": (8, 0)}
    scheduler.add(Abort("b"))
    assert rows(scheduler.plan([chain("a", 30)])) == {"a": (1, 15)}


def test_rejected_drafts_give_their_blocks_back():
    scheduler, pool = make()
    start(scheduler, submit("a", 3, max_tokens=40))
    free = pool.num_free()
    plan = scheduler.plan([chain("a", 30)])
    assert pool.num_free() < free
    scheduler.apply(plan, verdicts(plan, accept=0))
    assert pool.num_free() == free - 1, "one block for the token at slot 4"
    scheduler.check()


def test_drafts_are_cut_to_free_blocks_and_never_preempt():
    scheduler, pool = make(num_blocks=5)
    start(scheduler, submit("a", 4, max_tokens=9), submit("b", 4, max_tokens=9))
    plan = scheduler.plan([chain("a", 7), chain("b", 7)])
    granted = rows(plan)
    assert sorted(granted.values()) == [(1, 3), (1, 7)], "two blocks of rows, then one more block"
    assert scheduler.num_preempted == 0 and pool.num_free() == 0


def test_the_first_draft_of_a_sequence_counts():
    scheduler, _ = make()
    start(scheduler, submit("a", 3))
    plan = scheduler.plan([chain("a", 2), chain("a", 4)])
    assert rows(plan) == {"a": (1, 2)}


def test_draft_arrays_may_be_anything():
    scheduler, _ = make()
    start(scheduler, submit("a", 3))
    wrong = Draft(("a", 0), np.array([1.5, 2.5]), np.array([-1, 0]), "test")
    assert rows(scheduler.plan([wrong])) == {"a": (1, 0)}
