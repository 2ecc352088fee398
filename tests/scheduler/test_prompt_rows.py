# SPDX-License-Identifier: Apache-2.0
"""Which prompts get how many rows: shares, long ones that wait, and the time limit of a step."""

import pytest

from fdspec.core import SamplingParams, Submit, Verdict
from fdspec.kv.block_pool import BlockPool
from fdspec.scheduler.batch import BatchScheduler
from fdspec.scheduler.prompt_rows import LEAST_ROWS, PrefillLimits

PARAMS = SamplingParams(max_tokens=50, seed=0)
FIXED_MS, ROW_MS, READ_MS = 4.0, 0.5, 1e-4


class Bench:
    """A scheduler whose steps take a known time."""

    def __init__(self, *, budget=64, max_num_seqs=16, **limits):
        self.scheduler = BatchScheduler(
            BlockPool(4000, 4),
            vocab_size=500,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=16_000,
            prefill=PrefillLimits(**limits),
        )

    def submit(self, **num_prompts):
        for name, num_prompt in num_prompts.items():
            self.scheduler.add(Submit(name, (1,) * num_prompt, PARAMS, cache_salt=name))

    def step(self):
        """Rows of each sequence, and the time that the step took."""
        plan = self.scheduler.plan([])
        reads = sum((s.start + s.num_rows / 2) * s.num_rows for s in plan.sequences)
        step_ms = FIXED_MS + ROW_MS * plan.num_rows + READ_MS * reads
        verdicts = [Verdict(s.sequence_id, (1,)) for s in plan.sequences if s.samples]
        self.scheduler.apply(plan, verdicts)
        self.scheduler.learn(plan, step_ms)
        return {s.sequence_id[0]: s.num_rows for s in plan.sequences}, step_ms


def test_first_come_first_served():
    bench = Bench(budget=50)
    bench.submit(a=80, b=10, c=30)
    assert bench.step()[0] == {"a": 50}
    assert bench.step()[0] == {"a": 30, "b": 10, "c": 10}
    assert bench.step()[0] == {"a": 1, "b": 1, "c": 20}


def test_prompts_under_way_share_a_step():
    bench = Bench(budget=60, max_partial=3)
    bench.submit(a=100, b=100, c=10, d=100)
    assert bench.step()[0] == {"a": 25, "b": 25, "c": 10}
    assert bench.step()[0] == {"a": 20, "b": 20, "c": 1, "d": 19}


def test_what_is_left_goes_to_the_next_prompts():
    bench = Bench(budget=60, max_partial=2)
    bench.submit(a=10, b=10, c=100, d=100, e=100)
    assert bench.step()[0] == {"a": 10, "b": 10, "c": 20, "d": 20}


def test_short_prompts_pass_long_ones_that_wait():
    bench = Bench(budget=60, max_partial=3, max_long=1, long_threshold=50)
    bench.submit(long=100, late=100, short=40, last=100)
    assert bench.step()[0] == {"long": 30, "short": 30}
    assert bench.step()[0] == {"long": 50, "short": 10}
    assert bench.step()[0] == {"long": 20, "short": 1, "late": 39}
    assert bench.step()[0] == {"long": 1, "short": 1, "late": 58}


def test_long_prompts_stay_in_order_and_fill_the_step():
    bench = Bench(budget=200, max_partial=2, max_long=1, long_threshold=50)
    bench.submit(a=60, b=60, c=10, d=90)
    assert bench.step()[0] == {"a": 60, "c": 10, "b": 60, "d": 70}


def run_beside_decoding(num_steps=60, **limits):
    """Times of the steps in which a prompt of 4,000 tokens is computed beside four streams."""
    bench = Bench(budget=512, **limits)
    bench.submit(a=20, b=20, c=20, d=20)
    for _ in range(20):
        bench.step()
    bench.submit(long=4000)
    rows: list[int] = []
    times: list[float] = []
    while sum(rows) < 4000 and len(rows) < num_steps:
        step, step_ms = bench.step()
        assert [step[name] for name in "abcd"] == [1] * 4
        rows.append(step["long"])
        times.append(step_ms)
    return rows, times


def test_a_step_takes_no_longer_than_its_limit():
    rows, times = run_beside_decoding(num_steps=400, max_step_ms=30.0)
    assert sum(rows) == 4000
    assert max(times) < 1.1 * 30.0
    # What the limit allows is used, once the times are known.
    assert min(times[5:-1]) > 0.8 * 30.0
    unlimited, _ = run_beside_decoding()
    assert unlimited[:7] == [508] * 7


def test_a_limit_that_cannot_be_met_slows_prompts_down_but_never_stops_them():
    rows, _ = run_beside_decoding(num_steps=100, max_step_ms=1.0)
    assert rows == [LEAST_ROWS] * 100


def test_without_streams_nobody_waits_and_there_is_no_limit():
    bench = Bench(budget=512, max_step_ms=1.0)
    bench.submit(a=1000)
    assert bench.step()[0] == {"a": 512}


@pytest.mark.parametrize("limit", [None, 5.0])
def test_every_prompt_ends(limit):
    bench = Bench(budget=40, max_partial=2, long_threshold=30, max_step_ms=limit)
    bench.submit(**{f"r{i}": 7 * i + 1 for i in range(12)})
    for _ in range(400):
        bench.step()
        if all(not r for r in [bench.scheduler.num_waiting]):
            break
    assert bench.scheduler.num_waiting == 0
