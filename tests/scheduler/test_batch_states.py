# SPDX-License-Identifier: Apache-2.0
"""Random commands, drafts and verdicts: the books of scheduler and pool balance at every step."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fdspec.core import Abort, Draft, FinishReason, SamplingParams, Submit, Verdict
from fdspec.kv.block_pool import BlockPool
from fdspec.scheduler.batch import BatchScheduler
from fdspec.scheduler.prompt_rows import PrefillLimits

MAX_MODEL_LEN = 40


class SchedulerMachine(RuleBasedStateMachine):
    """A client, a proposer and a target that do whatever the contracts allow."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.live: set[tuple[str, int]] = set()
        self.num_submitted = 0

    @initialize(
        num_blocks=st.integers(10, 25),
        max_num_seqs=st.integers(1, 5),
        budget=st.integers(5, 30),
        prefill=st.builds(
            PrefillLimits,
            max_partial=st.integers(1, 3),
            max_long=st.integers(1, 2),
            long_threshold=st.sampled_from([0, 3, 12]),
            max_step_ms=st.sampled_from([None, 0.1, 20.0]),
        ),
    )
    def build(self, num_blocks, max_num_seqs, budget, prefill):
        self.pool = BlockPool(num_blocks, 4)
        self.scheduler = BatchScheduler(
            self.pool,
            vocab_size=30,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            prefill=prefill,
        )
        self.budget = budget

    @rule(
        num_prompt=st.integers(1, 30),
        max_tokens=st.integers(1, 15),
        n=st.integers(1, 3),
        priority=st.integers(-1, 1),
        max_draft=st.sampled_from([None, 0, 2]),
    )
    def submit(self, num_prompt, max_tokens, n, priority, max_draft):
        name = str(self.num_submitted)
        self.num_submitted += 1
        params = SamplingParams(max_tokens=max_tokens, seed=0, n=n, max_draft_tokens=max_draft)
        events = self.scheduler.add(Submit(name, tuple(range(num_prompt)), params, priority))
        if num_prompt + max_tokens > MAX_MODEL_LEN:
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
        plan = self.scheduler.plan(drafts)
        assert plan.num_rows <= self.budget
        assert bool(plan.sequences) == bool(self.live), "work and no step, or a step and no work"
        assert len({s.sequence_id for s in plan.sequences}) == len(plan.sequences)
        for sequence in plan.sequences:
            assert sequence.num_committed_rows >= 1
            assert len(sequence.block_ids) == -(-(sequence.start + sequence.num_rows) // 4)
        verdicts = [self.verdict(s, draw) for s in plan.sequences if s.samples]
        self.scheduler.learn(plan, draw(st.floats(0.01, 1e4)))
        for event in self.scheduler.apply(plan, verdicts):
            key = (event.request_id, event.choice)
            assert event.index == len(self.outputs[key])
            self.outputs[key] += event.tokens
            if event.finish is not None:
                self.live.remove(key)

    def verdict(self, sequence, draw):
        path = []
        if sequence.draft is not None:
            current = -1
            for index, parent in enumerate(sequence.draft.parents.tolist()):
                if parent == current and draw(st.booleans()):
                    path.append(index)
                    current = index
        tokens = tuple(range(len(path) + 1))
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
            if not self.live:
                break
            plan = self.scheduler.plan([])
            verdicts = [
                Verdict(
                    s.sequence_id,
                    (1,),
                    finish=(
                        FinishReason.LENGTH if s.num_output + 1 == s.params.max_tokens else None
                    ),
                )
                for s in plan.sequences
                if s.samples
            ]
            for event in self.scheduler.apply(plan, verdicts):
                if event.finish is not None:
                    self.live.remove((event.request_id, event.choice))
        assert not self.live, "some request never ends"
        assert self.pool.num_free() == self.pool.num_blocks


TestSchedulerStates = SchedulerMachine.TestCase
TestSchedulerStates.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
