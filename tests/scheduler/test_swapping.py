# SPDX-License-Identifier: Apache-2.0
"""Preempted requests are swapped where that is quicker, and go on where they were."""

import pytest

from fdspec.core import Abort
from fdspec.kv.block_pool import BlockPool
from fdspec.scheduler.batch import BatchScheduler
from fdspec.scheduler.swapping import Swapping
from tests.scheduler.batch_steps import rows, start, step, submit, verdicts


def make(num_slots, *, block_ms=1.0, prefix_caching=False):
    return BatchScheduler(
        BlockPool(6, 4, prefix_caching=prefix_caching),
        vocab_size=500,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=128,
        swapping=Swapping(num_slots, block_ms),
    )


def preempt(scheduler, first="a", second="b"):
    """Two requests of which the second is preempted; returns the plan that did it."""
    num_before = scheduler.num_preempted
    start(scheduler, submit(first, 7, max_tokens=12), submit(second, 7, max_tokens=16))
    while scheduler.num_preempted == num_before:
        plan, _ = step(scheduler)
    return plan


def resume(scheduler):
    """Steps until the second request runs again; returns that plan."""
    while "b" not in rows(plan := scheduler.plan([])):
        assert plan.swap_ins == ()
        scheduler.apply(plan, verdicts(plan))
    return plan


def test_a_swapped_request_goes_on_where_it_was():
    scheduler = make(3)
    plan = preempt(scheduler)
    assert [slot for _, slot in plan.swap_outs] == [0, 1, 2] and scheduler.num_swapped == 1
    plan = resume(scheduler)
    assert rows(plan) == {"b": (1, 0)}
    (resumed,) = plan.sequences
    assert plan.swap_ins == tuple(zip((0, 1, 2), resumed.block_ids[:3], strict=True))
    scheduler.apply(plan, verdicts(plan))
    while scheduler.has_work():
        step(scheduler)


def test_blocks_that_are_still_cached_are_not_copied_back():
    scheduler = make(3, prefix_caching=True)
    preempt(scheduler)
    plan = resume(scheduler)
    (resumed,) = plan.sequences
    assert plan.copies == () and resumed.start == 12
    assert plan.swap_ins == tuple(zip((1, 2), resumed.block_ids[1:3], strict=True))


def test_without_room_it_is_computed_again():
    scheduler = make(2)
    assert preempt(scheduler).swap_outs == ()
    assert scheduler.num_swapped == 0
    assert resume(scheduler).sequences[0].start == 0


@pytest.mark.parametrize(("row_ms", "pays"), [(0.1, False), (10.0, True)])
def test_the_quicker_way_is_taken(row_ms, pays):
    scheduler = make(10)
    scheduler.add(submit("measured", 20, max_tokens=1))
    plan, _ = step(scheduler)
    scheduler.learn(plan, 20 * row_ms)
    preempt(scheduler)
    assert scheduler.num_swapped == pays


def test_an_abort_frees_the_slots():
    scheduler = make(3)
    preempt(scheduler)
    scheduler.add(Abort("b"))
    scheduler.check()
    scheduler.add(Abort("a"))
    preempt(scheduler, "c", "d")
    assert scheduler.num_swapped == 2
