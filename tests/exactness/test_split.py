# SPDX-License-Identifier: Apache-2.0
"""Prompts computed by one engine and continued by another give the tokens of plain decoding.

Real models and caches of each type, both transports; the engines take turns in one thread, so that
a run can be repeated. `tests/engine/test_split.py` has brokers, threads and faults.
"""

import shutil
import tempfile
import time
from pathlib import Path

import pytest

from fdspec.core import FinishReason, Submit
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.ngram import NgramProposer
from tests.exactness.worlds import ALL_WORLDS, decode_handoff, prefill_handoff
from tests.fakes.exactness import Result, Setting, compare

# Prefill cuts prompts and shares its blocks with offers; decode preempts.
PREFILL = Setting(max_num_seqs=3, max_num_batched_tokens=32, num_blocks=14)
DECODE = Setting(max_num_seqs=7, max_num_batched_tokens=64, num_blocks=12)
DEADLINE_S = 200.0
MIN_TOKENS = 250


Reached = tuple[tuple[int, ...] | None, bytes]
"""A choice's first token, or None if it has ended; and its offer."""


class Relay:
    """What a broker does for one client: results, and requests from one engine to the next."""

    def __init__(self, prefill, decode, submits):
        self.prefill, self.decode = prefill, decode
        self.results = {(s.request_id, c): Result() for s in submits for c in range(s.params.n)}
        self._submits = {submit.request_id: submit for submit in submits}
        self._reached: dict[str, dict[int, Reached]] = {s.request_id: {} for s in submits}
        for submit in submits:
            prefill.topic.send(submit)

    def run(self):
        end_s = time.monotonic() + DEADLINE_S
        while not all(result.finish for result in self.results.values()):
            assert time.monotonic() < end_s, "some request never ends"
            for event in self.prefill.step(0.001):
                self._take_first(event)
            for event in self.decode.step(0.001):
                self.results[event.request_id, event.choice].add(event)
            for engine in (self.prefill, self.decode):
                engine.monitor.check()
        while self.prefill.monitor.stats().num_free_blocks < PREFILL.num_blocks:
            assert time.monotonic() < end_s, "blocks do not come back"
            self.prefill.step(0.001)
        stats = self.decode.monitor.stats()
        assert stats.num_free_blocks == stats.num_blocks
        return self.results

    def _take_first(self, event):
        moves = event.finish is FinishReason.HANDOFF
        assert bool(event.offer) == moves
        told = event._replace(finish=None, offer=b"") if moves else event
        if event.tokens:
            self.results[event.request_id, event.choice].add(told)
        reached = self._reached[event.request_id]
        reached[event.choice] = (event.tokens, event.offer) if moves else (None, b"")
        submit = self._submits[event.request_id]
        if len(reached) == submit.params.n and any(offer for _, offer in reached.values()):
            choices = [reached[choice] for choice in range(submit.params.n)]
            emitted, offers = zip(*choices, strict=True)
            self.decode.topic.send(
                Submit(submit.request_id, submit.prompt, submit.params, 0, "", "", emitted, offers)
            )


def check(world, transport, proposer, *, decode_setting=DECODE, is_early=False):
    folder = Path(tempfile.mkdtemp(prefix="fd-", dir="/tmp"))
    runner = world.make_runner(PREFILL)
    source = prefill_handoff(folder, runner)
    prefill = world.engine_on(
        runner,
        NaiveProposer(),
        PREFILL,
        handoff=source,
        hands_over=True,
        opens_early=is_early,
    )
    runner = world.make_runner(decode_setting)
    sink = decode_handoff(transport, runner.cache)
    decode = world.engine_on(runner, proposer, decode_setting, handoff=sink)
    try:
        results = Relay(prefill, decode, world.submits).run()
        assert compare(world.expected, results) >= MIN_TOKENS
        stats = decode.monitor.stats()
        assert stats.num_loaded_total == prefill.monitor.stats().num_offered_total > 10
        assert stats.num_load_failures_total == 0
        return stats
    finally:
        source.close()
        sink.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full if name == "smollm2" else [])
        for name in ALL_WORLDS
    ],
)
def test_split(worlds, name):
    """Each model in one way; the full suite has both transports, with and without drafts."""
    number = ALL_WORLDS.index(name)
    transport = ("shm", "zmq-tcp")[number % 2]
    is_early = number in (1, 2)
    stats = check(worlds(name), transport, NgramProposer(5, min_ngram_size=1), is_early=is_early)
    assert stats.num_accepted_tokens_total > 0


@pytest.mark.full
@pytest.mark.parametrize("transport", ["shm", "zmq-tcp"])
@pytest.mark.parametrize("is_early", [False, True], ids=["", "early"])
@pytest.mark.parametrize("name", ALL_WORLDS)
def test_every_transport(worlds, name, transport, is_early):
    tight = Setting(max_num_seqs=4, max_num_batched_tokens=16, num_blocks=9)
    check(worlds(name), transport, NaiveProposer(), is_early=is_early)
    drafts = NgramProposer(2, min_ngram_size=1)
    check(worlds(name), transport, drafts, decode_setting=tight, is_early=is_early)
