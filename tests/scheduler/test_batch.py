# SPDX-License-Identifier: Apache-2.0
"""Batch scheduler without a model: batching, chunks, preemption, refusal, abort."""

from dataclasses import replace

import pytest

from fdspec.core import (
    Abort,
    ConfigError,
    Draft,
    FinishReason,
    Submit,
)
from fdspec.scheduler.prompt_rows import PrefillLimits
from tests.scheduler.batch_steps import PARAMS, chain, make, rows, start, step, submit, verdicts


def test_prompts_and_decode_rows_share_a_step():
    scheduler, _ = make()
    scheduler.add(submit("a", 5))
    plan, events = step(scheduler)
    assert rows(plan) == {"a": (5, 0)}
    assert plan.sequences[0].samples and plan.sequences[0].next_token is None
    assert [(e.request_id, e.index, e.tokens) for e in events] == [("a", 0, (9,))]
    scheduler.add(submit("b", 3))
    plan, events = step(scheduler)
    assert rows(plan) == {"a": (1, 0), "b": (3, 0)}
    assert plan.sequences[0].history.tolist() == [1, 2, 3, 4, 5, 9]
    assert plan.sequences[0].start == 5


def test_long_prompts_come_in_chunks_behind_decode_rows():
    scheduler, _ = make(max_num_batched_tokens=8)
    scheduler.add(submit("a", 2))
    step(scheduler)
    scheduler.add(submit("b", 17))
    sizes = []
    for _ in range(3):
        plan, events = step(scheduler)
        sizes.append(rows(plan)["b"][0])
        assert rows(plan)["a"] == (1, 0)
    assert sizes == [7, 7, 3]
    middle = plan.sequences[1]
    assert middle.samples and middle.start == 14


def test_a_chunk_knows_the_token_that_follows():
    scheduler, _ = make(max_num_batched_tokens=8)
    scheduler.add(submit("a", 10))
    plan = scheduler.plan([])
    assert not plan.sequences[0].samples
    assert plan.sequences[0].next_token == 9
    assert plan.sequences[0].history.tolist() == list(range(1, 9))


def test_unchunked_prompts_wait_until_they_fit_whole():
    scheduler, _ = make(
        max_num_batched_tokens=8, max_model_len=8, prefill=PrefillLimits(chunked=False)
    )
    for name, num_prompt in (("a", 5), ("b", 5), ("c", 1)):
        scheduler.add(submit(name, num_prompt, max_tokens=2))
    plan, _ = step(scheduler)
    assert rows(plan) == {"a": (5, 0)}, "c must not overtake b"
    plan, _ = step(scheduler)
    assert rows(plan) == {"a": (1, 0), "b": (5, 0), "c": (1, 0)}


def test_order_is_priority_then_arrival():
    scheduler, _ = make(max_num_seqs=1)
    for name, priority in (("late", 5), ("first", 0), ("second", 0), ("urgent", -1)):
        scheduler.add(submit(name, 2, priority=priority, max_tokens=1))
    order = []
    while scheduler.has_work():
        plan, _ = step(scheduler)
        order += rows(plan)
    assert order == ["urgent", "first", "second", "late"]


def test_choices_are_sequences_of_their_own():
    scheduler, pool = make()
    scheduler.add(submit("a", 3, n=3, max_tokens=2))
    plan, events = step(scheduler)
    assert [s.sequence_id for s in plan.sequences] == [("a", 0), ("a", 1), ("a", 2)]
    assert sorted(e.choice for e in events) == [0, 1, 2]
    step(scheduler)
    assert not scheduler.has_work() and pool.num_free() == 100


def test_a_repeated_delivery_changes_nothing():
    scheduler, _ = make()
    scheduler.add(submit("a", 3))
    step(scheduler)
    assert scheduler.add(submit("a", 3)) == []
    plan, _ = step(scheduler)
    assert rows(plan) == {"a": (1, 0)}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (submit("a", 125, max_tokens=4), ["125 prompt tokens", "max_tokens 4", "129", "128"]),
        (submit("a", 40, max_tokens=8), ["need 12 KV blocks", "has 10", "gpu_memory_utilization"]),
        (Submit("a", (), PARAMS), ["prompt is empty"]),
        (Submit("a", (1, 500), PARAMS), ["500", "0..499"]),
        (Submit("a", (-1, 5), PARAMS), ["-1", "0..499"]),
        (Submit("a", (1,), replace(PARAMS, max_tokens=0)), ["max_tokens", "0"]),
        (Submit("a", (1,), replace(PARAMS, seed=None)), ["seed"]),
        (Submit("a", (1,), replace(PARAMS, max_tokens=None)), ["max_tokens"]),
    ],
)
def test_what_can_never_fit_is_refused_with_numbers(command, words):
    scheduler, _ = make(num_blocks=10)
    command = replace(command, params=replace(command.params, n=2))
    events = scheduler.add(command)
    assert [(e.choice, e.finish, e.tokens) for e in events] == [
        (0, FinishReason.ERROR, ()),
        (1, FinishReason.ERROR, ()),
    ]
    for word in words:
        assert events[0].error is not None and word in events[0].error
    assert not scheduler.has_work()


def test_the_last_token_needs_no_slot():
    scheduler, pool = make(num_blocks=10, max_num_seqs=1)
    assert scheduler.add(submit("a", 33, max_tokens=8)) == []
    while scheduler.has_work():
        step(scheduler)
    assert pool.num_free() == 10


def test_budget_below_the_batch_is_a_config_error():
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(3\).*max_num_seqs \(4\)"):
        make(max_num_batched_tokens=3)


# -- preemption -----------------------------------------------------------------------------------


def test_the_last_arrival_is_preempted_and_resumes_with_its_output():
    scheduler, pool = make(num_blocks=6)
    start(scheduler, submit("a", 7, max_tokens=16), submit("b", 7, max_tokens=16))
    while scheduler.num_preempted == 0:
        before = step(scheduler)[0]
    assert rows(before) == {"a": (1, 0)}, "b lost its blocks"
    assert scheduler.num_waiting == 1
    while "b" not in rows(plan := scheduler.plan([])):
        scheduler.apply(plan, verdicts(plan))
    resumed = plan.sequences[-1]
    assert resumed.start == 0 and resumed.num_prompt == 7
    assert resumed.history.tolist() == [*range(1, 8), *[9] * (len(resumed.history) - 7)]
    assert len(resumed.history) > 7
    assert rows(plan) == {"b": (len(resumed.history), 0)}, "a has ended"


def test_priority_decides_who_is_preempted():
    scheduler, _ = make(num_blocks=6)
    start(scheduler, submit("a", 7, max_tokens=16), submit("b", 7, max_tokens=16, priority=-1))
    while scheduler.num_preempted == 0:
        plan, _ = step(scheduler)
    assert rows(plan) == {"b": (1, 0)}


def test_a_preempted_prompt_keeps_no_half_state():
    scheduler, pool = make(num_blocks=8, max_num_batched_tokens=8)
    start(scheduler, submit("a", 3, max_tokens=28))
    scheduler.add(submit("b", 24))
    plan, _ = step(scheduler)
    assert rows(plan)["b"] == (7, 0)
    while scheduler.num_preempted == 0:
        step(scheduler)
    assert scheduler.num_waiting + scheduler.num_running == 2


def test_nobody_overtakes_a_request_that_waits_for_blocks():
    scheduler, _ = make(num_blocks=10)
    start(scheduler, submit("a", 20))
    scheduler.add(submit("big", 24))
    scheduler.add(submit("small", 1))
    plan, _ = step(scheduler)
    assert rows(plan) == {"a": (1, 0)}


def test_every_request_ends_in_a_pool_for_little_more_than_one():
    scheduler, pool = make(num_blocks=12, max_num_batched_tokens=16)
    for index in range(12):
        scheduler.add(submit(str(index), 5 + index, max_tokens=39 - index - 5, n=1 + index % 2))
    ended, steps = 0, 0
    while scheduler.has_work():
        drafts = [
            Draft.chain(c.sequence_id, [7] * c.max_draft, "t") for c in scheduler.draft_contexts()
        ]
        _, events = step(scheduler, drafts, accept=steps % 3)
        ended += sum(event.finish is not None for event in events)
        steps += 1
        assert steps < 2000
    assert ended == 18 and pool.num_free() == 12
    assert scheduler.num_preempted > 0


# -- abort, late results --------------------------------------------------------------------------


def test_abort_ends_every_choice_and_returns_all_blocks():
    scheduler, pool = make()
    start(scheduler, submit("a", 3, n=2), submit("b", 5))
    scheduler.add(submit("waiting", 5))
    events = scheduler.add(Abort("a")) + scheduler.add(Abort("waiting"))
    assert [(e.request_id, e.choice, e.index, e.finish) for e in events] == [
        ("a", 0, 1, FinishReason.ABORT),
        ("a", 1, 1, FinishReason.ABORT),
        ("waiting", 0, 0, FinishReason.ABORT),
    ]
    assert scheduler.add(Abort("a")) == [] and scheduler.add(Abort("unknown")) == []
    scheduler.add(Abort("b"))
    assert pool.num_free() == 100 and not scheduler.has_work()
    scheduler.check()


def test_results_of_an_aborted_sequence_are_dropped():
    scheduler, pool = make()
    start(scheduler, submit("a", 5), submit("b", 5))
    plan = scheduler.plan([])
    scheduler.add(Abort("a"))
    scheduler.add(replace(submit("a", 2), cache_salt=""))  # the name is free again
    events = scheduler.apply(plan, verdicts(plan))
    assert [e.request_id for e in events] == ["b"]
    plan, events = step(scheduler)
    assert rows(plan)["a"] == (2, 0)


def test_late_results_are_dropped():
    """An output that arrives after a newer plan, a preemption or a resume changes nothing."""
    scheduler, _ = make(num_blocks=6)
    start(scheduler, submit("a", 7, max_tokens=16), submit("b", 7, max_tokens=16))
    late = scheduler.plan([])
    while scheduler.num_preempted == 0:
        step(scheduler)
    current = scheduler.plan([])
    assert scheduler.apply(late, verdicts(late, token=3)) == []
    events = scheduler.apply(current, verdicts(current))
    assert all(event.tokens == (9,) for event in events)
    assert scheduler.apply(current, verdicts(current)) == [], "the same result twice"
    scheduler.check()


def test_only_the_newest_plan_counts():
    scheduler, _ = make()
    start(scheduler, submit("a", 3))
    old = scheduler.plan([chain("a", 4)])
    new = scheduler.plan([])
    assert scheduler.apply(old, verdicts(old, accept=4)) == []
    assert [event.tokens for event in scheduler.apply(new, verdicts(new))] == [(9,)]
