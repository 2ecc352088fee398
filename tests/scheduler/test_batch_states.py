# SPDX-License-Identifier: Apache-2.0
"""Random commands, drafts and verdicts: the books of scheduler and pool balance at every step.

Whatever is shared, copied or preempted, every sequence finds its own tokens in the cache.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from fdspec.core import Abort, Draft, FinishReason, SamplingParams, Submit, Verdict
from fdspec.kv.block_pool import BlockPool
from fdspec.scheduler.batch import BatchScheduler
from fdspec.scheduler.prompt_rows import PrefillLimits
from fdspec.scheduler.swapping import Swapping
from tests.fakes.prefix_cache import PrefixCache

MAX_MODEL_LEN = 40
BLOCK_SIZE = 4
COUNTS: Counter[str] = Counter()


class SchedulerMachine(RuleBasedStateMachine):
    """A client, a proposer and a target that do whatever the contracts allow."""

    hands_over = False
    opens_early = False

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.live: set[tuple[str, int]] = set()
        self.num_submitted = 0

    @initialize(
        num_blocks=st.integers(10, 16),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(6, 30),
        prefill=st.builds(
            PrefillLimits,
            max_partial=st.integers(1, 3),
            max_long=st.integers(1, 2),
            long_threshold=st.sampled_from([0, 3, 12]),
            max_step_ms=st.sampled_from([None, 0.1, 20.0]),
        ),
        prefix_caching=st.sampled_from([True, True, True, False]),
        num_slots=st.sampled_from([0, 5, 100]),
        fair_share=st.booleans(),
    )
    def build(
        self, num_blocks, max_num_seqs, budget, prefill, prefix_caching, num_slots, fair_share
    ):
        self.pool = BlockPool(num_blocks, BLOCK_SIZE, prefix_caching=prefix_caching)
        self.cache = PrefixCache(num_blocks, BLOCK_SIZE, num_slots)
        self.scheduler = BatchScheduler(
            self.pool,
            vocab_size=30,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            prefill=prefill,
            swapping=Swapping(num_slots, 1.0),
            fair_share_by_user=fair_share,
            hands_over=self.hands_over,
            opens_early=self.opens_early,
        )
        self.budget = budget

    @rule(
        num_prompt=st.integers(1, 20),
        max_tokens=st.integers(1, 30),
        n=st.integers(1, 3),
        priority=st.integers(-1, 1),
        num_common=st.integers(0, 20),
        user=st.sampled_from(["a", "b"]),
        salt=st.sampled_from(["", "", "", "x"]),
        prompt_logprobs=st.sampled_from([None, None, None, 0]),
        max_draft_tokens=st.sampled_from([None, 0, 2]),
    )
    def submit(self, num_prompt, num_common, priority, user, salt, **params):
        """Prompts have their first num_common tokens in common with each other."""
        name = str(self.num_submitted)
        self.num_submitted += 1
        num_common = min(num_common, num_prompt)
        prompt = (*range(num_common), *[29] * (num_prompt - num_common))
        events = self.scheduler.add(
            Submit(name, prompt, SamplingParams(seed=0, **params), priority, salt, user)
        )
        n = params["n"]
        if num_prompt + params["max_tokens"] > MAX_MODEL_LEN:
            assert len(events) == n and all(e.finish is FinishReason.ERROR for e in events)
            return
        assert events == []
        for choice in range(n):
            self.live.add((name, choice))
            self.outputs[name, choice] = []

    @rule(data=st.data())
    def abort(self, data):
        number = data.draw(st.integers(0, max(self.num_submitted, 1)))
        for event in self.scheduler.add(Abort(str(number))):
            key = (event.request_id, event.choice)
            assert event.finish is FinishReason.ABORT
            assert event.index == len(self.outputs[key])
            self.live.remove(key)

    @rule()
    def forget(self):
        if hasattr(self, "scheduler"):
            self.scheduler.forget_cached()

    @rule(data=st.data(), steps=st.integers(1, 6))
    def step(self, data, steps):
        for _ in range(steps):
            self.one_step(data.draw)

    def one_step(self, draw):
        drafts = []
        for context in self.scheduler.draft_contexts():
            assert context.sequence_id in self.live
            size = draw(st.integers(0, 9))
            tokens = draw(st.lists(st.integers(-1, 31), min_size=size, max_size=size))
            parents = [draw(st.integers(-1, max(i - 1, -1))) for i in range(size)]
            drafts.append(
                Draft(context.sequence_id, np.array(tokens, int), np.array(parents, int), "t")
            )
        self.settle(lambda: draw(st.integers(0, 5)))
        plan = self.scheduler.plan(drafts)
        assert plan.num_rows <= self.budget
        if not (self.is_blocked() or plan.loads):
            assert bool(plan.sequences) == bool(self.live), "work and no step, or the reverse"
        assert len({s.sequence_id for s in plan.sequences}) == len(plan.sequences)
        for sequence in plan.sequences:
            assert sequence.num_committed_rows >= 1
            num_slots = sequence.start + sequence.num_rows
            assert len(sequence.block_ids) == -(-num_slots // BLOCK_SIZE)
        verdicts = [
            self.verdict(s, draw) for s in plan.sequences if s.samples or s.wants_prompt_logprobs
        ]
        self.run(plan, verdicts)
        self.scheduler.learn(plan, draw(st.floats(0.01, 1e4)))
        for event in self.scheduler.apply(plan, verdicts):
            key = (event.request_id, event.choice)
            assert event.index == len(self.outputs[key])
            self.outputs[key] += event.tokens
            if event.finish is not None:
                self.live.remove(key)
        self.depart()

    def settle(self, choose):
        """Other processes do something; `choose` gives 0 .. 5."""

    def is_blocked(self):
        """True if requests may wait for other processes."""
        return False

    def depart(self):
        """Sequences may have left for other processes."""
        assert self.scheduler.take_departures() == []

    def run(self, plan, verdicts):
        self.cache.execute(plan)
        self.cache.commit(plan, verdicts)
        COUNTS["steps"] += 1
        COUNTS["copies"] += len(plan.copies)
        COUNTS["found"] += sum(s.start > 0 and s.num_output == 0 for s in plan.sequences)

    def verdict(self, sequence, draw):
        if not sequence.samples:
            return Verdict(sequence.sequence_id)
        path = []
        if sequence.draft is not None:
            current = -1
            for index, parent in enumerate(sequence.draft.parents.tolist()):
                if parent == current and draw(st.booleans()):
                    path.append(index)
                    current = index
        accepted = sequence.draft.tokens[path].tolist() if path else ()
        tokens = (*accepted, draw(st.integers(0, 2)))
        num_output = sequence.num_output + len(tokens)
        assert num_output <= sequence.params.max_tokens, "drafts may not pass max_tokens"
        ends = num_output == sequence.params.max_tokens or draw(st.integers(0, 9)) == 0
        return Verdict(
            sequence.sequence_id,
            tokens,
            tuple(path),
            sequence.num_draft_rows,
            finish=FinishReason.STOP if ends else None,
        )

    def last_verdict(self, sequence):
        ends = sequence.num_output + 1 == sequence.params.max_tokens
        return Verdict(
            sequence.sequence_id,
            (1,) if sequence.samples else (),
            finish=FinishReason.LENGTH if sequence.samples and ends else None,
        )

    @invariant()
    def books_balance(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check()
            assert self.scheduler.num_running + self.scheduler.num_waiting == len(self.live)
            assert self.scheduler.has_work() == bool(self.live)

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3000):
            self.settle(lambda: 1)
            if not self.live and not self.is_blocked():
                break
            plan = self.scheduler.plan([])
            verdicts = [
                self.last_verdict(s) for s in plan.sequences if s.samples or s.wants_prompt_logprobs
            ]
            self.run(plan, verdicts)
            for event in self.scheduler.apply(plan, verdicts):
                if event.finish is not None:
                    self.live.remove((event.request_id, event.choice))
            self.depart()
        COUNTS["preempted"] += self.scheduler.num_preempted
        COUNTS["swapped"] += self.scheduler.num_swapped
        assert not self.live, "some request never ends"
        assert self.pool.num_free() == self.pool.num_blocks


def explore(num_examples, *, derandomize):
    """Run the machine; every kind of thing happens. Returns the steps."""
    COUNTS.clear()
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=derandomize,
        ),
    )
    assert min(COUNTS[kind] for kind in ("copies", "found", "preempted", "swapped")) > 0, COUNTS
    return COUNTS["steps"]


def test_scheduler_states():
    explore(30, derandomize=True)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_many_scheduler_states():
    num_steps = 0
    while num_steps < 100_000:
        num_steps += explore(25, derandomize=False)
