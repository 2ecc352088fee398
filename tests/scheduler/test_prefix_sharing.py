# SPDX-License-Identifier: Apache-2.0
"""What requests find in the cache, what they leave there, and who waits for whom; no model."""

from dataclasses import replace

import numpy as np

from fdspec.core import Abort, Submit
from fdspec.kv.block_pool import BlockPool
from fdspec.scheduler.batch import BatchScheduler
from tests.scheduler.batch_steps import PARAMS, chain, rows, start, step, verdicts


def make(num_blocks=100, prefix_caching=True, **limits):
    pool = BlockPool(num_blocks, 4, prefix_caching=prefix_caching)
    settings = {
        "vocab_size": 500,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 128,
        **limits,
    }
    return BatchScheduler(pool, **settings), pool


def submit(name, tokens, *, salt="", **params):
    return Submit(name, tuple(tokens), replace(PARAMS, **params), cache_salt=salt)


def run_to_end(scheduler):
    """Steps until nothing is left; returns {name: rows computed}, and the events."""
    computed: dict[str, int] = {}
    events = []
    while scheduler.has_work():
        plan, now = step(scheduler)
        for name, (committed, drafted) in rows(plan).items():
            computed[name] = computed.get(name, 0) + committed + drafted
        events += now
    return computed, events


def num_cached(events):
    return {event.request_id: event.num_cached for event in events if event.index == 0}


def test_a_prompt_that_was_answered_computes_its_last_token_only():
    scheduler, pool = make()
    scheduler.add(submit("a", range(10), max_tokens=1))
    assert run_to_end(scheduler)[0] == {"a": 10}
    assert pool.num_free() == 100 and pool.num_cached == 3
    scheduler.add(submit("b", range(10), max_tokens=1))
    plan, events = step(scheduler)
    assert rows(plan) == {"b": (1, 0)} and plan.sequences[0].start == 9
    (copy,) = plan.copies
    assert copy[1] == plan.sequences[0].block_ids[2] != copy[0]
    assert num_cached(events) == {"b": 9}
    assert (scheduler.num_prefix_queries, scheduler.num_prefix_hits) == (20, 9)


def test_the_start_of_a_full_block_is_copied_where_prompts_part():
    scheduler, _ = make()
    scheduler.add(submit("a", range(12), max_tokens=1))
    run_to_end(scheduler)
    scheduler.add(submit("b", [*range(6), 90, 91, 92], max_tokens=1))
    plan, events = step(scheduler)
    assert rows(plan) == {"b": (3, 0)} and num_cached(events) == {"b": 6}
    assert len(plan.copies) == 1


def test_a_prompt_of_whole_blocks_still_computes_its_last_token():
    scheduler, _ = make()
    scheduler.add(submit("a", range(8), max_tokens=1))
    run_to_end(scheduler)
    scheduler.add(submit("b", range(8), max_tokens=1))
    plan, events = step(scheduler)
    assert rows(plan) == {"b": (1, 0)} and num_cached(events) == {"b": 7}


def test_every_turn_of_a_chat_computes_the_new_text_only():
    scheduler, _ = make(num_blocks=40, max_num_batched_tokens=128, max_model_len=200)
    history: list[int] = []
    for turn in range(10):
        new = [100 + turn, 7, 8, 101 + turn, 3]
        history += new
        scheduler.add(submit(str(turn), history, max_tokens=8))
        computed, events = run_to_end(scheduler)
        answer = [token for event in events for token in event.tokens]
        # The last token of an answer was never computed: nothing followed it.
        assert computed == {str(turn): len(new) + (turn > 0) + len(answer) - 1}
        history += answer


def test_nothing_is_found_before_it_was_computed():
    scheduler, _ = make(max_num_batched_tokens=8)
    scheduler.add(submit("a", range(20)))
    scheduler.add(submit("b", [*range(16), 90, 91, 92, 93]))
    scheduler.add(submit("c", range(200, 204)))
    planned = [rows(step(scheduler)[0]) for _ in range(3)]
    # b waits until a has computed all that they share; c need not.
    assert planned == [{"a": (8, 0)}, {"a": (8, 0)}, {"a": (4, 0), "b": (4, 0)}]
    plan, _ = step(scheduler)
    assert rows(plan)["c"] == (4, 0)
    assert plan.sequences[0].block_ids[:4] == plan.sequences[1].block_ids[:4]


def test_who_waits_lets_others_pass_and_outlives_the_one_it_waits_for():
    scheduler, _ = make(max_num_batched_tokens=8)
    scheduler.add(submit("a", range(40)))
    scheduler.add(submit("b", range(40)))
    assert rows(step(scheduler)[0]) == {"a": (8, 0)}
    scheduler.add(Abort("a"))
    plan, _ = step(scheduler)
    assert rows(plan) == {"b": (8, 0)} and plan.sequences[0].start == 8
    scheduler.add(submit("c", range(40)))
    scheduler.add(submit("d", range(40)))
    step(scheduler)
    assert scheduler.num_waiting == 2
    scheduler.add(Abort("c"))
    scheduler.add(Abort("b"))
    scheduler.check()
    computed, events = run_to_end(scheduler)
    # b was there for two chunks after the one that it found.
    assert num_cached(events) == {"d": 24} and computed["d"] == 16 + 7


def test_choices_share_the_blocks_of_their_prompt():
    scheduler, pool = make()
    scheduler.add(submit("a", range(10), n=4, max_tokens=8))
    plan, _ = step(scheduler)
    assert [s.sequence_id for s in plan.sequences] == [("a", 0)]
    plan, events = step(scheduler)
    assert [s.num_committed_rows for s in plan.sequences] == [1] * 4
    assert len({s.block_ids[:2] for s in plan.sequences}) == 1
    assert len({s.block_ids[2] for s in plan.sequences}) == 4 and len(plan.copies) == 3
    assert [e.num_cached for e in events if e.index == 0] == [9, 9, 9]
    assert pool.num_free() == 100 - 2 - 4


def test_a_salt_keeps_requests_apart():
    scheduler, _ = make()
    for salt, expected in (("", 0), ("x", 0), ("", 9), ("x", 9)):
        scheduler.add(submit("a", range(10), salt=salt, max_tokens=1))
        assert num_cached(run_to_end(scheduler)[1]) == {"a": expected}


def test_prompt_logprobs_need_every_row():
    scheduler, _ = make()
    start(scheduler, submit("a", range(10)))
    scheduler.add(submit("b", range(10), prompt_logprobs=0))
    plan = scheduler.plan([])
    assert rows(plan) == {"a": (1, 0), "b": (10, 0)} and plan.copies == ()


def test_equal_prompts_computed_side_by_side_end_up_in_the_same_blocks():
    scheduler, pool = make()
    for name in "ab":
        scheduler.add(submit(name, range(10), prompt_logprobs=0))
    plan, _ = step(scheduler)
    assert rows(plan) == {"a": (10, 0), "b": (10, 0)}
    plan = scheduler.plan([])
    assert plan.sequences[0].block_ids[:2] == plan.sequences[1].block_ids[:2]
    assert pool.num_free() == 100 - 4


def test_a_preempted_request_resumes_with_what_is_left_of_its_blocks():
    scheduler, pool = make(num_blocks=7)
    start(scheduler, submit("a", range(7), max_tokens=16), submit("b", range(50, 57)))
    while scheduler.num_preempted == 0:
        step(scheduler)
    while "b" not in rows(plan := scheduler.plan([])):
        scheduler.apply(plan, verdicts(plan))
    resumed = plan.sequences[-1]
    assert resumed.start == 4, "its first block was never needed"


def test_drafts_are_written_behind_what_is_shared():
    scheduler, _ = make()
    start(scheduler, submit("a", range(8)), submit("b", range(8)))
    step(scheduler)
    plan = scheduler.plan([chain("a", 5), chain("b", 5)])
    assert rows(plan) == {"a": (1, 5), "b": (1, 5)}
    first, second = plan.sequences
    assert first.block_ids[:2] == second.block_ids[:2]
    assert set(first.block_ids[2:]).isdisjoint(second.block_ids[2:])
    scheduler.apply(plan, verdicts(plan, accept=3))
    scheduler.check()


def test_sharers_are_neighbours_in_a_plan():
    scheduler, _ = make(max_num_batched_tokens=128)
    common, branch = list(range(8)), list(range(50, 58))
    for name, tokens in (
        ("first", [*common, *branch, 1]),
        ("alone", range(100, 110)),
        ("other", [*common, 70, 71, 72]),
        ("second", [*common, *branch, 2]),
    ):
        scheduler.add(submit(name, tokens))
        step(scheduler)
    plan = scheduler.plan([])
    names = [s.sequence_id[0] for s in plan.sequences]
    assert names.index("alone") in (0, 3)
    sharers = [name for name in names if name != "alone"]
    assert sharers in (["first", "second", "other"], ["other", "first", "second"])
    assert [s.sequence_id[0] for s in step(scheduler)[0].sequences] == names


def test_without_caching_nothing_is_found_and_nobody_waits():
    scheduler, pool = make(prefix_caching=False)
    for name in "ab":
        scheduler.add(submit(name, range(10)))
    assert rows(step(scheduler)[0]) == {"a": (10, 0), "b": (10, 0)}
    _, events = run_to_end(scheduler)
    assert pool.num_cached == 0 and scheduler.num_prefix_hits == 0


def test_what_was_forgotten_is_computed_and_found_again():
    scheduler, pool = make()
    start(scheduler, submit("a", range(10)))
    start(scheduler, submit("ends", range(200, 210)))
    scheduler.forget_cached()
    scheduler.check()
    assert pool.num_cached == 0
    scheduler.add(Abort("ends"))
    assert pool.num_cached == 3
    scheduler.add(submit("b", [*range(10), 50, 51, 52], max_tokens=1))
    assert rows(step(scheduler)[0])["b"] == (13, 0)
    _, events = run_to_end(scheduler)
    scheduler.add(submit("c", np.arange(10).tolist(), max_tokens=1))
    assert num_cached(run_to_end(scheduler)[1]) == {"c": 9}
