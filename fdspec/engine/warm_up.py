# SPDX-License-Identifier: Apache-2.0
"""Steps before the first request: they measure what a step costs. Called by `build.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fdspec.core import Draft, SamplingParams, SequencePlan, StepPlan
from fdspec.core.drafting import DraftModel, DraftShare
from fdspec.core.protocols import ModelRunner
from fdspec.spec_decode.step_costs import TYPICAL_COSTS, StepCosts

_SHAPES = ((1, 0), (1, 3), (1, 7), (4, 0), (8, 0))
_LEAST_ROUNDS = 3
_MEASURING_S = 0.3
_MOST_ROWS = max(1 + drafts for _, drafts in _SHAPES)


def measure_step_costs(
    runner: ModelRunner,
    *,
    num_blocks: int,
    block_size: int,
    drafters: Sequence[DraftModel] = (),
) -> StepCosts:
    """Time some steps, each of them a few times.

    Args:
        runner: writes into any block, so no request may run yet.
        num_blocks: blocks of its cache.
        block_size: tokens in a block.
        drafters: models that draft; a pass of the slowest is what drafting costs.

    Returns:
        The measured costs, or typical ones where the cache is too small to measure.
    """
    if block_size < 2 * _MOST_ROWS or num_blocks < max(count for count, _ in _SHAPES):
        return TYPICAL_COSTS
    plans = [_plan(*shape, block_size) for shape in _SHAPES]
    share = _draft_share(block_size)
    works: list[Callable[[], object]] = [partial(runner.execute, plan) for plan in plans]
    works += [partial(drafter.run, [share]) for drafter in drafters]
    times = _least_times(works)
    costs = StepCosts.fitted(dict(zip(_SHAPES, times[: len(_SHAPES)], strict=True)))
    return costs._replace(draft=max(times[len(_SHAPES) :], default=0.0) / times[0])


def _least_times(works: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds that each takes where it is least disturbed.

    In turn, so that a machine that becomes slower does so for all.
    """
    for work in works:
        work()
    times = [float("inf")] * len(works)
    until_s = time.perf_counter() + _MEASURING_S
    num_rounds = 0
    while num_rounds < _LEAST_ROUNDS or time.perf_counter() < until_s:
        for index, work in enumerate(works):
            start_s = time.perf_counter()
            work()
            times[index] = min(times[index], time.perf_counter() - start_s)
        num_rounds += 1
    return times


def _draft_share(block_size: int) -> DraftShare:
    """The row of a draft token."""
    return DraftShare(block_size // 2, np.zeros(1, np.int32), (0,), wants_next=True)


def _plan(num_sequences: int, num_drafts: int, block_size: int) -> StepPlan:
    """Decoding sequences with a block each, half filled, and drafts."""
    start = block_size // 2
    tokens = np.zeros(start + 1, dtype=np.int32)
    sequences = []
    for index in range(num_sequences):
        sequence_id = (f"warm-up {index}", 0)
        draft = Draft.chain(sequence_id, tokens[:num_drafts], "warm-up") if num_drafts else None
        sequences.append(
            SequencePlan(
                sequence_id,
                start,
                tokens,
                num_prompt=start,
                draft=draft,
                block_ids=(index,),
                params=SamplingParams(temperature=0.0),
                samples=True,
            )
        )
    return StepPlan(0, tuple(sequences))
