# SPDX-License-Identifier: Apache-2.0
"""Steps before the first request: they measure what a step costs. Called by `build.py`."""

from __future__ import annotations

import time

import numpy as np

from fdspec.core import Draft, SamplingParams, SequencePlan, StepPlan
from fdspec.core.protocols import ModelRunner
from fdspec.spec_decode.step_costs import TYPICAL_COSTS, StepCosts

_SHAPES = ((1, 0), (1, 3), (1, 7), (4, 0), (8, 0))
_LEAST_ROUNDS = 3
_MEASURING_S = 0.3
_MOST_ROWS = max(1 + drafts for _, drafts in _SHAPES)


def measure_step_costs(runner: ModelRunner, *, num_blocks: int, block_size: int) -> StepCosts:
    """Time some steps, each of them a few times.

    Args:
        runner: writes into any block, so no request may run yet.
        num_blocks: blocks of its cache.
        block_size: tokens in a block.

    Returns:
        The measured costs, or typical ones where the cache is too small to measure.
    """
    if block_size < 2 * _MOST_ROWS or num_blocks < max(count for count, _ in _SHAPES):
        return TYPICAL_COSTS
    plans = {shape: _plan(*shape, block_size) for shape in _SHAPES}
    for plan in plans.values():
        runner.execute(plan)
    # In turn, so that a machine that becomes slower does so for all; the least is the least
    # disturbed.
    times = dict.fromkeys(plans, float("inf"))
    until_s = time.perf_counter() + _MEASURING_S
    num_rounds = 0
    while num_rounds < _LEAST_ROUNDS or time.perf_counter() < until_s:
        for shape, plan in plans.items():
            start_s = time.perf_counter()
            runner.execute(plan)
            times[shape] = min(times[shape], time.perf_counter() - start_s)
        num_rounds += 1
    return StepCosts.fitted(times)


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
