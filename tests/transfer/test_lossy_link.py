# SPDX-License-Identifier: Apache-2.0
"""Source and pull over a link that loses, repeats and delays, with a clock that jumps.

Whatever happens: a pull that says "loaded" has the source's bytes of that prompt, every block of
the source comes back once, and own blocks are not read into while an earlier read may write there.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdspec.transfer import Completion, KVLayout, PullLimits
from fdspec.transfer.checksums import block_checksums, first_damaged
from fdspec.transfer.offer import Endpoint, Progress
from fdspec.transfer.pull import End, Pull, Quiesce, Read, Say, Verify
from fdspec.transfer.source import HandoffSource

NUM_LAYERS = 2
NUM_BLOCKS = 4
LAYOUT = KVLayout("tiny", "wint4", "default", "cpu-1", "bfloat16", NUM_LAYERS, 1, 4, 4)
LIMITS = PullLimits(deadline_s=40.0, silence_s=5.0, ask_s=1.0)
LEASE_S = 8.0
GOOD = ("step", "deliver", "step", "deliver")
BAD = (
    *("lose", "repeat", "delay", "deliver delayed", "news", "short wait", "long wait"),
    *("withdraw", "offer again", "recycle", "read fails", "read goes on", "damage", "abort"),
)
EVENTS = (*GOOD * 8, *("compute", "complete", "complete", "prompt") * 3, *BAD)


class World:
    """One prompt after another goes through blocks that are used again at once."""

    def __init__(self, with_checksums: bool) -> None:
        self.with_checksums = with_checksums
        self.now_s = 100.0
        self.freed: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()
        self.held: Any = None
        self.serial = 0
        self.to_source: list = []
        self.to_pull: list = []
        self.delayed: list = []
        self.theirs = [np.zeros((NUM_BLOCKS, 8), np.uint8) for _ in range(NUM_LAYERS)]
        self.mine = [np.zeros((NUM_BLOCKS, 8), np.uint8) for _ in range(NUM_LAYERS)]
        self.pull: Any = None
        self.luck = ""
        self.is_noisy = False
        self.outcomes: Counter[str] = Counter()
        self.source = HandoffSource(
            boot_id="boot",
            layout=LAYOUT,
            num_blocks=NUM_BLOCKS,
            control="inproc://none",
            endpoints=(Endpoint("one", b""), Endpoint("two", b"")),
            lease_s=LEASE_S,
            renew_s=LEASE_S,
            free=self.free,
        )
        self.prompt()

    def do(self, event: str) -> None:
        if event in ("read fails", "read goes on", "damage"):
            self.luck = event
        else:
            getattr(self, event.replace(" ", "_"))()
        self.source.check()
        assert self.taken - self.freed == Counter(self.held or ())

    def free(self, blocks: tuple[int, ...]) -> None:
        assert blocks == self.held
        self.freed.update(blocks)
        self.held = None

    def prompt(self, is_new: bool = True) -> None:
        """The source takes blocks for a prompt and offers them before it computes."""
        if self.held is not None:
            return
        self.serial += is_new
        self.key = (f"r{self.serial}", 0, 0)
        self.held = tuple(range(1 + self.serial % NUM_BLOCKS))
        self.taken.update(self.held)
        self.num_ready = 0
        self.offer = self.source.open(self.key, self.held, len(self.held) * 4)
        generator = np.random.default_rng(self.taken.total())
        self.truth = [generator.integers(1, 256, layer.shape, np.uint8) for layer in self.theirs]

    def compute(self) -> None:
        """One more block, and the first layer of all."""
        if self.is_open:
            blocks = len(self.held)
            self.num_ready = min(self.num_ready + 1, blocks)
            for layer, end in enumerate((blocks, self.num_ready)):
                self.theirs[layer][:end] = self.truth[layer][:end]
            self.source.advance(self.key, Progress(self.num_ready, 1, blocks))

    def complete(self) -> None:
        if self.is_open:
            for theirs, truth in zip(self.theirs, self.truth, strict=True):
                theirs[: len(self.held)] = truth[: len(self.held)]
            layers = [[layer] for layer in self.theirs]
            sums = block_checksums(layers, self.held) if self.with_checksums else b""
            self.source.complete(self.key, Completion(7, checksums=sums), self.now_s)

    def withdraw(self) -> None:
        self.source.withdraw(self.key)

    def offer_again(self) -> None:
        """The same sequence in the same blocks, with other contents."""
        self.source.withdraw(self.key)
        self.prompt(is_new=False)
        self.complete()

    def recycle(self) -> None:
        """Another sequence in the same blocks."""
        self.source.withdraw(self.key)
        self.prompt()
        self.complete()

    def start_pull(self) -> None:
        """Of the newest offer, which may have ended already."""
        self.expected = [truth[: len(self.offer.block_ids)] for truth in self.truth]
        self.pulled = self.offer
        self.num_written = 0
        for mine in self.mine:
            mine[:] = 0
        self.pull = Pull(
            self.offer,
            layout=LAYOUT,
            num_present=0,
            transports=("one", "two"),
            limits=LIMITS,
            now_s=self.now_s,
        )

    def step(self) -> None:
        """The pull does what it wants to do next."""
        if self.pull is None:
            self.start_pull()
        action = self.pull.next(self.now_s)
        blocks = range(len(self.pulled.block_ids))
        if isinstance(action, Say):
            self.to_source.append(action.call)
        elif isinstance(action, Read):
            self.read(action)
        elif isinstance(action, Verify):
            layers = [[layer] for layer in self.mine]
            self.pull.verified(first_damaged(layers, blocks, blocks, action.sums))
        elif isinstance(action, Quiesce):
            self.pull.quieted(not self.is_noisy)
        elif isinstance(action, End):
            self.end(action)

    def read(self, action: Read) -> None:
        assert not self.is_noisy
        luck, self.luck = self.luck, ""
        if luck in ("read fails", "read goes on"):
            self.is_noisy = luck == "read goes on"
            self.pull.failed("the transport failed")
            return
        for layer, start, end in action.pieces:
            self.mine[layer][start:end] = self.theirs[layer][start:end]
        if luck == "damage" and self.with_checksums:
            layer, start, _ = action.pieces[0]
            self.mine[layer][start, 0] ^= 1
        self.pull.read(action.pieces)

    def end(self, end: End) -> None:
        assert end.is_quiet == (not self.is_noisy)
        if end.outcome == "loaded":
            assert end.is_quiet
            assert self.pull.completion.first_token == 7
            for mine, truth in zip(self.mine, self.expected, strict=True):
                assert (mine[: len(truth)] == truth).all()
        self.outcomes[end.outcome] += 1
        self.to_source.append(end.call)
        self.pull = None
        self.is_noisy = False

    def abort(self) -> None:
        if self.pull is not None:
            self.pull.abort()

    def deliver(self) -> None:
        """All that is under way, in order."""
        for call in self.to_source:
            answer = self.source.handle(call, self.now_s)
            if answer is not None:
                self.to_pull.append(answer)
        self.to_source.clear()
        for answer in self.to_pull:
            if self.pull is not None:
                self.pull.answered(answer, self.now_s)
        self.to_pull.clear()

    def lose(self) -> None:
        self.to_source.clear()

    def repeat(self) -> None:
        self.to_source += self.to_source

    def delay(self) -> None:
        """Calls arrive, and their answers will much later."""
        answers = [self.source.handle(call, self.now_s) for call in self.to_source]
        self.delayed += [answer for answer in answers if answer is not None]
        self.to_source.clear()

    def deliver_delayed(self) -> None:
        self.to_pull += self.delayed
        self.deliver()

    def news(self) -> None:
        self.to_pull.append(self.source.news(self.key))

    def short_wait(self) -> None:
        self.now_s += 1.0
        self.source.sweep(self.now_s)

    def long_wait(self) -> None:
        self.now_s += 9.0
        self.source.sweep(self.now_s)

    def finish(self) -> None:
        """However it stands, pulls end and complete offers are freed in bounded time."""
        for _ in range(200):
            if self.pull is None:
                break
            self.now_s += 0.5
            self.step()
        assert self.pull is None
        self.complete()
        self.source.sweep(self.now_s + LEASE_S + 1.0)
        assert self.held is None

    @property
    def is_open(self) -> bool:
        """True if the newest offer is held and not complete."""
        offer = self.source.offer(self.key)
        return offer is not None and offer.completion is None


@settings(max_examples=300, deadline=None)
@given(st.booleans(), st.lists(st.sampled_from(EVENTS), min_size=20, max_size=80))
def test_anything_may_happen(with_checksums, events):
    world = World(with_checksums)
    for event in events:
        world.do(event)
    world.finish()


def outcome_after(*events, with_checksums=True):
    """How the first pull ends when everything arrives after these events."""
    world = World(with_checksums)
    for event in events:
        world.do(event)
    for event in GOOD * 10:
        if world.outcomes:
            break
        world.do(event)
    world.do("deliver")
    (outcome,) = world.outcomes
    return outcome, world.source.counts


@pytest.mark.parametrize("with_checksums", [False, True])
def test_in_fair_weather_it_loads(with_checksums):
    outcome, counts = outcome_after("compute", "complete", with_checksums=with_checksums)
    assert (outcome, counts.done, counts.late) == ("loaded", 1, 0)


@pytest.mark.parametrize("trouble", ["read fails", "damage"])
def test_one_failure_is_made_good_by_the_next_transport(trouble):
    assert outcome_after("complete", trouble)[0] == "loaded"


def test_another_transport_does_not_read_where_the_first_may_still_write():
    outcome, counts = outcome_after("complete", "read goes on")
    assert (outcome, counts.aborted) == ("recompute", 1)


def test_an_answer_from_before_the_last_read_confirms_nothing():
    asked = ("complete", "step", "delay", "news", "deliver")
    read_too_late = ("recycle", "step", "step", "deliver delayed")
    assert outcome_after(*asked, *read_too_late, with_checksums=False)[0] == "recompute"


def test_the_same_sequence_in_the_same_blocks_is_another_offer():
    read_too_late = ("complete", "step", "deliver", "offer again", "step", "step")
    assert outcome_after(*read_too_late, with_checksums=False)[0] == "recompute"
