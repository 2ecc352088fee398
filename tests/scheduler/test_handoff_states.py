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

from fdspec.core import FinishReason, SamplingParams, Submit, TokenEvent
from fdspec.core.handoff import HandoffNews, LoadEnd
from tests.scheduler.test_batch_states import BLOCK_SIZE, MAX_MODEL_LEN, SchedulerMachine

COUNTS: Counter[str] = Counter()


class DecodeMachine(SchedulerMachine):
    """Some requests come with offers, whose loads end in every way, or late, or never well."""

    def __init__(self):
        super().__init__()
        self.tokens = {}
        self.max_tokens = {}
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
            self.max_tokens[name, choice] = params["max_tokens"]

    def run(self, plan, verdicts):
        super().run(plan, verdicts)
        for load in plan.loads:
            assert len(load.block_ids) == -(-load.num_tokens // BLOCK_SIZE)
            assert load.num_tokens == len(self.tokens[load.sequence_id])
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
            COUNTS["abandoned"] += sequence_id not in self.live
            event = None
            if outcome == 1:
                tokens = self.tokens[sequence_id]
                if choose() < 3:
                    event = self._next_event(sequence_id, choose)
                else:
                    tokens = tokens[:-1]
                self._write(load.block_ids, tokens, load.num_present * BLOCK_SIZE)
            ends.append(LoadEnd(sequence_id, outcome == 1, outcome != 0, event))
            if outcome == 0:
                self.noisy.append(load.block_ids[load.num_present :])
        for blocks in list(self.noisy):
            if choose() < 2:
                self.noisy.remove(blocks)
                returned.append(blocks)
        for event in self.scheduler.settle(HandoffNews(tuple(ends), tuple(returned))):
            key = event.request_id, event.choice
            assert key in self.live and event.index == len(self.outputs[key])
            self.outputs[key] += event.tokens
            COUNTS["next tokens"] += 1
            if event.finish is not None:
                self.live.remove(key)

    def is_blocked(self):
        return bool(self.loads or self.noisy)

    def _next_event(self, sequence_id, choose):
        """As the other engine saw it: under another id."""
        is_last = len(self.outputs.get(sequence_id, ())) + 1 == self.max_tokens[sequence_id]
        finish = FinishReason.STOP if is_last or choose() == 0 else None
        return TokenEvent("elsewhere", 7, 99, (1,), finish=finish)

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
        self.open = {}

    def run(self, plan, verdicts):
        for departure in plan.departing:
            assert departure.num_output == 0
            self.open[departure.sequence_id] = departure
        super().run(plan, verdicts)

    def depart(self):
        for departure in self.scheduler.take_departures():
            assert departure.sequence_id not in self.live | self.open.keys()
            self.lent.append((departure, self._contents(departure)))
            COUNTS["departures"] += 1
        for sequence_id, departure in list(self.open.items()):
            if sequence_id not in self.live:
                del self.open[sequence_id]
                # One that was aborted may not have been computed.
                has_token = bool(self.outputs[sequence_id])
                self.lent.append((departure, self._contents(departure) if has_token else None))
                COUNTS["early"] += has_token

    def settle(self, choose):
        returned = []
        for entry in list(self.lent):
            departure, contents = entry
            if contents is not None:
                assert self._contents(departure) == contents, "somebody wrote to lent blocks"
            if choose() < 2:
                self.lent.remove(entry)
                returned.append(departure.block_ids)
        for sequence_id, departure in list(self.open.items()):
            if choose() == 0:
                # Whoever read it does not want it any more.
                del self.open[sequence_id]
                returned.append(departure.block_ids)
        assert self.scheduler.settle(HandoffNews(returned=tuple(returned))) == []

    def is_blocked(self):
        return bool(self.lent or self.open)

    def _contents(self, departure):
        """What its tokens' slots hold: each the tokens up to its own."""
        slots = [
            self.cache._blocks[departure.block_ids[position // BLOCK_SIZE]][position % BLOCK_SIZE]
            for position in range(departure.num_tokens)
        ]
        assert slots == [slots[-1][: position + 1] for position in range(departure.num_tokens)]
        return slots


class EarlyMachine(PrefillMachine):
    """They are offered before they are computed."""

    opens_early = True


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
    assert min(COUNTS[kind] for kind in ("0", "1", "2", "3", "present", "next tokens")) > 0, COUNTS


def test_departures():
    COUNTS.clear()
    explore(PrefillMachine, 15)
    assert COUNTS["departures"] > 50 and not COUNTS["early"]


def test_early_departures():
    COUNTS.clear()
    explore(EarlyMachine, 15)
    assert COUNTS["early"] > 10


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [DecodeMachine, PrefillMachine, EarlyMachine])
def test_many_states(machine):
    COUNTS.clear()
    explore(machine, 1000, derandomize=False)
    # About one in ten runs aborts a request while its cache is on the way.
    assert machine is not DecodeMachine or COUNTS["abandoned"] > 0
