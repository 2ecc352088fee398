# SPDX-License-Identifier: Apache-2.0
"""Pull: one offer's way into the blocks of a decode process, as a state machine.

It says what to do next and is told what came of it; it has no thread, socket or clock. `puller.py`
does what it says.

    reading -> verifying -> confirming -> loaded
       \\___________\\____________\\____-> quiescing -> reading by the next transport, or recompute
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from fdspec.transfer.layout import KVLayout
from fdspec.transfer.messages import Abort, Accept, Answer, Call, Done, Renew
from fdspec.transfer.offer import Completion, Offer, Progress
from fdspec.transfer.transports.interface import Piece


@dataclass(frozen=True, slots=True)
class PullLimits:
    """How long a pull waits.

    Attributes:
        deadline_s: for the whole pull, while the prompt is still being computed included.
        connect_s: for a connection to the source.
        silence_s: for the source's answer.
        ask_s: between repeated calls.
        read_s: for one read.
        quiet_s: for a transport to say that it writes no more.
    """

    deadline_s: float = 60.0
    connect_s: float = 2.0
    silence_s: float = 3.0
    ask_s: float = 0.5
    read_s: float = 10.0
    quiet_s: float = 1.0


Outcome = Literal["loaded", "recompute", "aborted"]


@dataclass(frozen=True, slots=True)
class Say:
    """Send a call to the source."""

    call: Call


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for an answer, not beyond a time."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Read:
    """Copy pieces by a transport."""

    transport: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare what has been read with checksums.

    Attributes:
        sums: of the whole offer, see Completion.checksums.
        first: index of the first block that was read.
    """

    sums: bytes
    first: int


@dataclass(frozen=True, slots=True)
class Quiesce:
    """Make sure that a transport writes no more."""

    transport: str


@dataclass(frozen=True, slots=True)
class End:
    """The pull has ended.

    Attributes:
        outcome: loaded: the blocks hold the prompt's KV. recompute: they do not. aborted: nobody
            wanted it any more.
        reason: for the log; empty if loaded.
        call: what to tell the source.
        is_quiet: False if a transport may still write into the blocks.
    """

    outcome: Outcome
    reason: str
    call: Call
    is_quiet: bool


Action = Say | Wait | Read | Verify | Quiesce | End


class _State(Enum):
    READING = 1
    VERIFYING = 2
    CONFIRMING = 3
    QUIESCING = 4
    ENDED = 5


class Pull:
    """One pull.

    Args:
        offer: what is offered.
        layout: of the own cache.
        num_present: so many blocks at the start are here already and are not read.
        transports: names, in order of preference; two of them are tried at most.
        limits: how long to wait.
        now_s: the time.

    Attributes:
        completion: the offer's, when it is known.

    Raises:
        LayoutMismatch: the blocks would mean something else here; names the field.
    """

    def __init__(
        self,
        offer: Offer,
        *,
        layout: KVLayout,
        num_present: int,
        transports: Sequence[str],
        limits: PullLimits,
        now_s: float,
    ) -> None:
        layout.check_equals(offer.layout)
        self._offer = offer
        self._layout_digest = layout.digest
        self._num_blocks = len(offer.block_ids)
        self._num_present = num_present
        self._limits = limits
        self._end_s = now_s + limits.deadline_s
        self._transports = list(transports[:2])
        self.completion: Completion | None = None
        self._progress = Progress()
        self._pulled = [num_present] * layout.num_layers
        self._state = _State.READING
        self._reason = ""
        self._outcome: Outcome = "recompute"
        self._may_retry = False
        self._is_quiet = True
        self._number = 0
        self._number_at_last_read = 0
        # When the oldest unanswered call was sent, and when to repeat it.
        self._unanswered_s: float | None = None
        self._ask_s = now_s
        if not self._transports:
            self._fail("no transport is shared with the source", may_retry=False)

    @property
    def transport(self) -> str:
        """What it reads with now, or has read with. Does not modify."""
        return self._transports[0] if self._transports else ""

    def next(self, now_s: float) -> Action:
        """What to do now."""
        if self._state in (_State.READING, _State.VERIFYING, _State.CONFIRMING):
            if now_s >= self._end_s:
                self._fail(f"not done within {self._limits.deadline_s:g} s", may_retry=False)
            elif self._is_silent(now_s):
                self._fail(f"no answer for {self._limits.silence_s:g} s", may_retry=False)
        if self._state is _State.READING:
            return self._next_read(now_s)
        if self._state is _State.VERIFYING:
            assert self.completion is not None
            return Verify(self.completion.checksums, self._num_present)
        if self._state is _State.CONFIRMING:
            return self._ask(Renew(self._number + 1, self._offer.ref), now_s)
        if self._state is _State.QUIESCING:
            return Quiesce(self._transports[0])
        call = Done if self._outcome == "loaded" else Abort
        return End(self._outcome, self._reason, call(self._offer.ref), self._is_quiet)

    def answered(self, answer: Answer, now_s: float) -> None:
        """The source has said something; what concerns other offers is ignored."""
        if (answer.request_id, answer.choice, answer.epoch) != self._offer.ref.key:
            return
        if self._state in (_State.QUIESCING, _State.ENDED):
            return
        if answer.state != "held":
            reason = answer.detail or "the source does not hold the blocks any more"
            self._fail(reason, may_retry=False)
            return
        self._unanswered_s = None
        if self._state is _State.CONFIRMING:
            # Only an answer to a call that was made after the last read says something about it.
            if answer.number > self._number_at_last_read:
                self._outcome, self._reason, self._state = "loaded", "", _State.ENDED
            return
        self._progress = answer.progress
        self.completion = answer.completion or self.completion

    def read(self, pieces: Sequence[Piece]) -> None:
        """Pieces have been copied."""
        for piece in pieces:
            self._pulled[piece.layer] = piece.end

    def verified(self, damaged: tuple[int, int] | None) -> None:
        """Checksums have been compared; (layer, index) of a block that is wrong."""
        if damaged is None:
            self._state = _State.CONFIRMING
            self._number_at_last_read = self._number
            self._unanswered_s = None
            self._ask_s = 0.0
        else:
            self._fail(f"block {damaged[1]} of layer {damaged[0]} is damaged", may_retry=True)

    def failed(self, reason: str) -> None:
        """A read has failed; the next transport is tried, once."""
        self._fail(reason, may_retry=True)

    def lost(self, reason: str) -> None:
        """The source is gone."""
        self._fail(reason, may_retry=False)

    def abort(self) -> None:
        """Nobody wants the blocks any more."""
        if self._state is not _State.ENDED and self._outcome != "aborted":
            self._fail("aborted", may_retry=False)
            self._outcome = "aborted"

    def quieted(self, is_quiet: bool) -> None:
        """Whether the transport writes no more."""
        self._is_quiet = is_quiet
        # While one transport may still write, what another one brings is not safe.
        if self._may_retry and is_quiet and len(self._transports) > 1:
            del self._transports[0]
            self._pulled = [self._num_present] * len(self._pulled)
            self._unanswered_s = None
            self._state = _State.READING
        else:
            self._state = _State.ENDED

    def _next_read(self, now_s: float) -> Action:
        pieces = tuple(
            Piece(layer, start, end)
            for layer, start in enumerate(self._pulled)
            if (end := min(self._progress.ready_blocks(layer), self._num_blocks)) > start
        )
        if pieces:
            return Read(self._transports[0], pieces)
        if self.completion is not None and min(self._pulled) >= self._num_blocks:
            if self.completion.checksums:
                self._state = _State.VERIFYING
            else:
                self.verified(None)
            return self.next(now_s)
        return self._ask(Accept(self._number + 1, self._offer.ref, self._layout_digest), now_s)

    def _ask(self, call: Accept | Renew, now_s: float) -> Say | Wait:
        """Say it, and again and again until there is news."""
        if now_s < self._ask_s:
            end_s = min(self._ask_s, self._end_s)
            if self._unanswered_s is not None:
                end_s = min(end_s, self._unanswered_s + self._limits.silence_s)
            return Wait(end_s)
        self._number = call.number
        self._ask_s = now_s + self._limits.ask_s
        if self._unanswered_s is None:
            self._unanswered_s = now_s
        return Say(call)

    def _is_silent(self, now_s: float) -> bool:
        since_s = self._unanswered_s
        return since_s is not None and now_s >= since_s + self._limits.silence_s

    def _fail(self, reason: str, *, may_retry: bool) -> None:
        if self._state is _State.ENDED:
            return
        self._reason = f"{self._reason}; {reason}" if self._reason else reason
        self._may_retry = may_retry
        self._state = _State.QUIESCING if self._transports else _State.ENDED
