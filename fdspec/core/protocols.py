# SPDX-License-Identifier: Apache-2.0
"""The parts of an engine and what each may do. `Engine.step` calls them in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from fdspec.core.command import Command, TokenEvent
from fdspec.core.draft import Draft, DraftContext
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

    def num_free(self) -> int:
        """Blocks that allocate can give. Does not modify."""
        ...

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks, or None if there are not so many (then nothing is taken)."""
        ...

    def release(self, block_ids: Iterable[int]) -> None:
        """Give blocks back; each must be held."""
        ...

    def check(self) -> None:
        """Raise AssertionError if the books do not balance. Does not modify."""
        ...


class Scheduler(Protocol):
    """Owner of all Requests: what runs next, and what a verdict changes."""

    def add(self, command: Command) -> list[TokenEvent]:
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
