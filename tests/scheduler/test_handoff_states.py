# SPDX-License-Identifier: Apache-2.0
"""Random loads and departures: blocks of other processes are never used, and all come back.

What is being loaded is overwritten at every step until its end is known; what has departed must
stay as it is until it comes back.
"""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from fdspec.core import SamplingParams, Submit
from fdspec.core.handoff import HandoffNews, LoadEnd
from tests.scheduler.test_batch_states import BLOCK_SIZE, MAX_MODEL_LEN, SchedulerMachine

COUNTS: Counter[str] = Counter()


class DecodeMachine(SchedulerMachine):
    """Some requests come with offers, whose loads end in every way, or late, or never well."""

    def __init__(self):
        super().__init__()
        self.tokens = {}
        self.loads = {}
        self.noisy = []

    @rule(
        num_prompt=st.integers(1, 20),
        num_emitted=st.integers(1, 5),
        max_tokens=st.integers(6, 18),
        n=st.integers(1, 2),
        num_common=st.integers(0, 20),
    )
    def submit_offered(self, num_prompt, num_emitted, num_common, **params):
        name = str(self.num_submitted)
        self.num_submitted += 1
        common = min(num_common, num_prompt)
        prompt = (*range(common), *[29] * (num_prompt - common))
        emitted = (1,) * num_emitted
        if num_prompt + params["max_tokens"] > MAX_MODEL_LEN:
            return
        events = self.scheduler.add(
            Submit(
                name,
                prompt,
                SamplingParams(seed=0, **params),
                emitted=(emitted,) * params["n"],
                offers=(b"offer",) * params["n"],
            )
        )
        assert events == []
        for choice in range(params["n"]):
            self.live.add((name, choice))
            self.outputs[name, choice] = list(emitted)
            self.tokens[name, choice] = prompt + emitted

    def run(self, plan, verdicts):
        super().run(plan, verdicts)
        for load in plan.loads:
            assert len(load.block_ids) == -(-load.num_tokens // BLOCK_SIZE)
            assert load.num_tokens == len(self.tokens[load.sequence_id]) - 1
            self._check_present(load)
            self.loads[load.sequence_id] = load
        for load in self.loads.values():
            self._write(load.block_ids[load.num_present :], None)
        for blocks in self.noisy:
            self._write(blocks, None)

    def settle(self, choose):
        ends = []
        returned = []
        for sequence_id, load in list(self.loads.items()):
            outcome = choose()
            COUNTS[str(outcome)] += 1
            if outcome > 2:
                continue
            del self.loads[sequence_id]
            ends.append(LoadEnd(sequence_id, outcome == 1, is_quiet=outcome != 0))
            COUNTS["abandoned"] += sequence_id not in self.live
            if outcome == 1:
                tokens = self.tokens[sequence_id][: load.num_tokens]
                self._write(load.block_ids, tokens, load.num_present * BLOCK_SIZE)
            elif outcome == 0:
                self.noisy.append(load.block_ids[load.num_present :])
        for blocks in list(self.noisy):
            if choose() < 2:
                self.noisy.remove(blocks)
                returned.append(blocks)
        self.scheduler.settle(HandoffNews(tuple(ends), tuple(returned)))

    def is_blocked(self):
        return bool(self.loads or self.noisy)

    def _check_present(self, load):
        tokens = self.tokens[load.sequence_id]
        for position in range(load.num_present * BLOCK_SIZE):
            block = self.cache._blocks[load.block_ids[position // BLOCK_SIZE]]
            assert block[position % BLOCK_SIZE] == tokens[: position + 1]
        COUNTS["present"] += load.num_present

    def _write(self, block_ids, tokens, start=0):
        """A prefix into a sequence's blocks from `start` on; None spoils all of them."""
        if tokens is None:
            for block_id in block_ids:
                self.cache._blocks[block_id] = [None] * BLOCK_SIZE
            return
        for position in range(start, len(tokens)):
            block = self.cache._blocks[block_ids[position // BLOCK_SIZE]]
            block[position % BLOCK_SIZE] = tokens[: position + 1]


class PrefillMachine(SchedulerMachine):
    """Every sequence departs; its blocks come back some time."""

    hands_over = True

    def __init__(self):
        super().__init__()
        self.lent = []

    def depart(self):
        for departure in self.scheduler.take_departures():
            assert departure.sequence_id not in self.live
            self.lent.append((departure, self._contents(departure)))
            COUNTS["departures"] += 1

    def settle(self, choose):
        returned = []
        for entry in list(self.lent):
            departure, contents = entry
            assert self._contents(departure) == contents, "somebody wrote to lent blocks"
            if choose() < 2:
                self.lent.remove(entry)
                returned.append(departure.block_ids)
        self.scheduler.settle(HandoffNews(returned=tuple(returned)))

    def is_blocked(self):
        return bool(self.lent)

    def _contents(self, departure):
        """What its tokens' slots hold: each the tokens up to its own."""
        slots = [
            self.cache._blocks[departure.block_ids[position // BLOCK_SIZE]][position % BLOCK_SIZE]
            for position in range(departure.num_tokens)
        ]
        assert slots == [slots[-1][: position + 1] for position in range(departure.num_tokens)]
        return slots


def explore(machine, num_examples, *, derandomize=True):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=derandomize,
        ),
    )


def test_loads():
    COUNTS.clear()
    explore(DecodeMachine, 25)
    assert min(COUNTS[kind] for kind in ("0", "1", "2", "3", "abandoned", "present")) > 0, COUNTS


def test_departures():
    COUNTS.clear()
    explore(PrefillMachine, 15)
    assert COUNTS["departures"] > 50


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [DecodeMachine, PrefillMachine])
def test_many_states(machine):
    explore(machine, 1000, derandomize=False)
