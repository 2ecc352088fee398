# SPDX-License-Identifier: Apache-2.0
"""StepCosts: the fit recovers the costs that made the times, and stays inside its bounds."""

import pytest

from fdspec.spec_decode.step_costs import StepCosts

SHAPES = [(1, 0), (1, 3), (1, 7), (4, 0), (8, 0), (4, 5)]


def times(sequence, row):
    return {(b, d): 0.004 * (1 + sequence * (b - 1) + row * b * d) for b, d in SHAPES}


@pytest.mark.parametrize(("sequence", "row"), [(0.3, 0.1), (0.02, 0.9)])
def test_fit_recovers_the_costs(sequence, row):
    assert StepCosts.fitted(times(sequence, row)) == pytest.approx((sequence, row, 0.0))


def test_costs_outside_of_what_steps_can_cost_are_cut():
    assert StepCosts.fitted(times(-0.1, 3.0)) == StepCosts(0.01, 0.95)
