# SPDX-License-Identifier: Apache-2.0
"""The parts of an engine and what each may do. `Engine.step` calls them in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fdspec.core.command import Abort, Command, Submit, TokenEvent
from fdspec.core.draft import Draft, DraftContext
from fdspec.core.handoff import Departure, HandoffCounts, HandoffNews
from fdspec.core.plan import ModelOutput, StepPlan, Verdict
from fdspec.core.request import SequenceId


class SchedulerTopic(Protocol):
    """Where commands come from and events go to, seen from the engine."""

    def poll(self, limit: int, timeout_s: float) -> list[Command]:
        """Up to `limit` commands in order; waits up to timeout_s if there are none."""
        ...

    def emit(self, events: Sequence[TokenEvent]) -> None:
        """Hand events to whoever submitted the requests, in order."""
        ...


class Match(NamedTuple):
    """What of a sequence's start is in the cache.

    Attributes:
        block_ids: full blocks from the start of the sequence.
        partial_block: a block that holds the tokens that come next; None if there is none.
        num_partial: how many of them, counted from the block's start.
    """

    block_ids: tuple[int, ...] = ()
    partial_block: int | None = None
    num_partial: int = 0


class BlockPool(Protocol):
    """Owner of the KV cache's blocks; the only place that changes who holds a block."""

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        ...

    @property
    def num_blocks(self) -> int:
        """All blocks of the pool."""
        ...

    @property
    def prefix_caching(self) -> bool:
        """False if nothing is ever found."""
        ...

    def num_free(self) -> int:
        """Blocks that allocate can give. Does not modify."""
        ...

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks, or None if there are not so many (then nothing is taken)."""
        ...

    @property
    def num_cached(self) -> int:
        """Blocks whose tokens can be found, held or free. Does not modify."""
        ...

    def num_empty(self) -> int:
        """Of those, blocks that hold no cached tokens. Does not modify."""
        ...

    def num_holders(self, block_id: int) -> int:
        """Sequences that hold a block. Does not modify."""
        ...

    def share(self, block_ids: Iterable[int]) -> None:
        """Hold cached blocks once more."""
        ...

    def release(self, block_ids: Iterable[int]) -> None:
        """Give blocks back, the last one of a sequence first; each must be held."""
        ...

    def match(self, digests: Sequence[bytes], tokens: NDArray[np.int32]) -> Match:
        """The longest cached start of a sequence. Does not modify."""
        ...

    def touch(self, block_id: int) -> None:
        """Count a cached block as used now, without holding it."""
        ...

    def publish(
        self, block_id: int, parent: bytes, tokens: NDArray[np.int32], digest: bytes | None
    ) -> int:
        """Let others find a held block by its tokens; returns the block that is held now."""
        ...

    def forget_cached(self) -> None:
        """Let no block be found any more; held ones stay with their holders."""
        ...

    def check(self) -> None:
        """Raise AssertionError if the books do not balance. Does not modify."""
        ...


class Scheduler(Protocol):
    """Owner of all Requests: what runs next, and what a verdict changes."""

    def add(self, command: Submit | Abort) -> list[TokenEvent]:
        """Take a command; the events are refusals and aborts."""
        ...

    def has_work(self) -> bool:
        """True if a step would do something. Does not modify."""
        ...

    def draft_contexts(self) -> list[DraftContext]:
        """Sequences that may use drafts in the next step. Does not modify."""
        ...

    def plan(self, drafts: Sequence[Draft]) -> StepPlan:
        """Spend token and block budget on the next step; may admit and preempt."""
        ...

    def apply(self, plan: StepPlan, verdicts: Sequence[Verdict]) -> list[TokenEvent]:
        """Turn verdicts into request state and events."""
        ...

    def settle(self, news: HandoffNews) -> list[TokenEvent]:
        """Go on with what was loaded, and with tokens that came with it; take lent blocks back."""
        ...

    def take_departures(self) -> list[Departure]:
        """Sequences that the last `apply` handed over."""
        ...

    def forget_cached(self) -> int:
        """Empty the prefix cache; returns the blocks in which something could be found."""
        ...

    def learn(self, plan: StepPlan, step_ms: float) -> None:
        """Take the measured time of a step; it may change the size of chunks, never a token."""
        ...


class Proposer(Protocol):
    """Source of draft tokens. Wrong drafts cost time, never correctness."""

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """At most one draft for a context, at most max_draft tokens; may leave contexts out."""
        ...

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Learn from a finished step; the only place that changes a proposer's state."""
        ...

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop the state of ended sequences; unknown ids are ignored."""
        ...


class ModelRunner(Protocol):
    """The model and its KV cache."""

    def execute(self, plan: StepPlan) -> ModelOutput:
        """Compute the plan's rows; writes their KV into the cache."""
        ...

    def commit(self, plan: StepPlan, verdicts: Sequence[Verdict]) -> None:
        """Move the KV of accepted tree rows to the slots of their positions."""
        ...


class Verifier(Protocol):
    """Chooses the target's tokens, accepts drafts that equal them, and stops where it must."""

    def verify(self, plan: StepPlan, output: ModelOutput) -> list[Verdict]:
        """One verdict for each sequence that samples or wants prompt logprobs. Does not modify."""
        ...

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop cached token counts of ended sequences."""
        ...


class KVHandoff(Protocol):
    """The engine's end of the handoff of KV caches; does nothing where one engine does both jobs.

    Never waits: other threads copy and talk.
    """

    @property
    def num_open(self) -> int:
        """Offers that others may still read, and loads that have not ended. Does not modify."""
        ...

    def hold(self, submit: Submit) -> None:
        """A request has come; what is offered with it must last until it is loaded."""
        ...

    def news(self) -> HandoffNews:
        """What has happened since the last call."""
        ...

    def begin(self, plan: StepPlan) -> list[TokenEvent]:
        """A step begins: start its loads, and offer what departs early; returns these offers."""
        ...

    def end(
        self, plan: StepPlan, events: Sequence[TokenEvent], departures: Sequence[Departure]
    ) -> list[TokenEvent]:
        """A step has ended: offer what departs; returns the events that are told here."""
        ...

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop what ended sequences have not used; unknown ids are ignored."""
        ...

    def counts(self) -> HandoffCounts:
        """Totals since the start. Does not modify."""
        ...
