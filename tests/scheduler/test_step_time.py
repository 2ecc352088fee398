# SPDX-License-Identifier: Apache-2.0
"""The fit of step times: costs are found, changes followed, no kind of step forgotten."""

import random

import pytest

from fdspec.scheduler.step_time import StepLoad, StepTime, reads


def cost(load, *, fixed=5.0, row=0.4, read=2e-5):
    return fixed + row * load.num_rows + read * load.num_reads


def chunk(source):
    return StepLoad(8 + source.randrange(16, 500), source.randrange(1_000, 400_000))


def taught(num_steps, time=None, **costs):
    """A fit of so many steps of each kind."""
    time, source = time or StepTime(), random.Random(0)
    for _ in range(num_steps):
        load = chunk(source)
        time.learn(load, cost(load, **costs), has_prompt=True)
        decode = StepLoad(1 + source.randrange(9), 8_000)
        time.learn(decode, cost(decode, **costs), has_prompt=False)
    return time


def test_reads():
    assert reads(0, 1) == 1
    assert reads(10, 3) == 11 + 12 + 13


def test_costs_are_found():
    time = taught(40)
    for load in (StepLoad(8, 8_000), StepLoad(100, 50_000), StepLoad(500, 400_000)):
        assert time.predict_ms(load) == pytest.approx(cost(load), rel=0.05)


def test_rows_within_a_time_take_that_time():
    time = taught(40)
    decode = StepLoad(8, 8_000)
    for start in (0, 1_000, 30_000):
        left_ms = 40.0
        count = time.rows_within(left_ms, start, 10_000)
        taken = cost(StepLoad(8 + count, 8_000 + reads(start, count))) - cost(decode)
        assert taken == pytest.approx(left_ms, rel=0.05)
    assert time.rows_within(40.0, 0, 7) == 7
    assert time.rows_within(0.0, 0, 7) == time.rows_within(-5.0, 0, 7) == 0


def test_a_guess_is_careful_until_there_are_steps():
    time = StepTime()
    assert 20 < time.predict_ms(StepLoad(10, 10_000)) < 40
    assert 0 < time.rows_within(50.0, 0, 1_000) <= 50


def test_changes_are_followed():
    slower = {"fixed": 9.0, "row": 1.0, "read": 5e-5}
    time = taught(100, taught(40), **slower)
    load = StepLoad(200, 100_000)
    assert time.predict_ms(load) == pytest.approx(cost(load, **slower), rel=0.05)


def test_a_long_time_of_decoding_does_not_make_prompts_forgotten():
    time = taught(40)
    for _ in range(5_000):
        time.learn(StepLoad(8, 8_000), cost(StepLoad(8, 8_000)), has_prompt=False)
    load = StepLoad(300, 200_000)
    assert time.predict_ms(load) == pytest.approx(cost(load), rel=0.1)


def test_noise_does_not_make_a_cost_negative():
    time, source = StepTime(), random.Random(2)
    for _ in range(200):
        load = chunk(source)
        time.learn(load, source.lognormvariate(2.0, 1.0), has_prompt=bool(source.getrandbits(1)))
        assert time.predict_ms(StepLoad(1, 1)) <= time.predict_ms(StepLoad(900, 900_000))
        assert 0 <= time.rows_within(10.0, 5_000, 100) <= 100
