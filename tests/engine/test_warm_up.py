# SPDX-License-Identifier: Apache-2.0
"""Warm-up: the steps that are timed, and what is concluded from them."""

from typing import Any

import numpy as np
import pytest

from fdspec.core import ModelOutput
from fdspec.engine import warm_up
from fdspec.spec_decode.step_costs import TYPICAL_COSTS


class Clock:
    """A runner whose steps take the time that a cost model says, and the clock that shows it."""

    def __init__(self, sequence, row):
        self.sequence, self.row = sequence, row
        self.now_s = 0.0
        self.plans = []

    def execute(self, plan):
        num_drafts = sum(s.num_draft_rows for s in plan.sequences)
        self.now_s += 1 + self.sequence * (len(plan.sequences) - 1) + self.row * num_drafts
        self.plans.append(plan)
        return ModelOutput(np.zeros((0, 1), np.float32), np.zeros(1, np.int64))

    def perf_counter(self):
        return self.now_s


def test_costs_are_those_of_the_runner(monkeypatch):
    clock: Any = Clock(sequence=0.4, row=0.25)
    monkeypatch.setattr(warm_up, "time", clock)
    costs = warm_up.measure_step_costs(clock, num_blocks=8, block_size=64)
    assert costs == pytest.approx((0.4, 0.25, 0.0))
    for plan in clock.plans:
        held = [block for s in plan.sequences for block in s.block_ids]
        assert len(held) == len(set(held)) and max(held) < 8
        assert all(s.start + s.num_rows <= 64 for s in plan.sequences)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(7, 64), (8, 8)])
def test_a_small_cache_is_not_measured(num_blocks, block_size):
    clock: Any = Clock(sequence=0.4, row=0.25)
    costs = warm_up.measure_step_costs(clock, num_blocks=num_blocks, block_size=block_size)
    assert costs is TYPICAL_COSTS


def test_drafting_costs_a_pass_of_the_slowest_model(monkeypatch):
    clock: Any = Clock(sequence=0.4, row=0.25)
    monkeypatch.setattr(warm_up, "time", clock)
    drafters: Any = [SlowDrafter(clock, 0.125), SlowDrafter(clock, 0.5)]
    costs = warm_up.measure_step_costs(clock, num_blocks=8, block_size=64, drafters=drafters)
    assert costs == pytest.approx((0.4, 0.25, 0.5))


class SlowDrafter:
    """A drafting model whose passes take so long."""

    def __init__(self, clock, pass_s):
        self.clock, self.pass_s = clock, pass_s

    def run(self, shares, hidden=None):
        assert sum(len(share.tokens) for share in shares) == 1
        self.clock.now_s += self.pass_s
