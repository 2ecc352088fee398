# SPDX-License-Identifier: Apache-2.0
"""PromptRows: how many rows of which prompts a step computes.

Decoding sequences have their rows already; what of the step's budget drafts may use is the batch
scheduler's decision. Admits waiting requests when there are rows for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fdspec.core import Request, SequenceId, Status, StepPlan
from fdspec.scheduler.budget import fair_shares
from fdspec.scheduler.residents import Residents
from fdspec.scheduler.step_time import StepLoad, StepTime

LEAST_ROWS = 4
"""Prompt rows that a step may always have: a time limit slows prompts down, it never stops them."""


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """What prompts may take of a step.

    Attributes:
        chunked: False computes each prompt in one step.
        max_partial: prompts that share a step's rows, and so are under way at the same time.
        max_long: how many of them may be long; shorter ones pass those that wait for this.
        long_threshold: tokens from which on a prompt is long; 0 makes none long.
        max_step_ms: a step in which sequences decode should not take longer; None is no limit.
    """

    chunked: bool = True
    max_partial: int = 1
    max_long: int = 1
    long_threshold: int = 0
    max_step_ms: float | None = None

    def is_long(self, request: Request) -> bool:
        """True for a prompt that counts against max_long."""
        return 0 < self.long_threshold < request.tokens.length


class PromptRows:
    """Rows for prompts, in order of service."""

    def __init__(self, residents: Residents, limits: PrefillLimits) -> None:
        self._residents = residents
        self._limits = limits
        self._step_time = StepTime()
        # Prompt rows that a step was seen to have time for.
        self._proven = LEAST_ROWS

    def learn(self, plan: StepPlan, step_ms: float) -> None:
        """Take the measured time of a step, if there is a limit that it matters for.

        Steps of prompts alone are left out: their chunks are large, and a row of a large chunk
        costs less than one of a small chunk.
        """
        most_ms = self._limits.max_step_ms
        chunks = [s.num_committed_rows for s in plan.sequences if s.num_committed_rows > 1]
        if most_ms is None or len(chunks) == len(plan.sequences):
            return
        self._step_time.learn(StepLoad.of(plan), step_ms, has_prompt=bool(chunks))
        if chunks and step_ms <= most_ms:
            self._proven = max(self._proven, sum(chunks))
        elif chunks:
            self._proven = max(sum(chunks) // 2, LEAST_ROWS)

    def budget(self, left: int, decoding: Iterable[SequenceId], num_draft_rows: int) -> int:
        """Rows that prompts may have. Does not modify.

        Args:
            left: rows of the step that decoding sequences leave.
            decoding: these sequences, one row each.
            num_draft_rows: rows of drafts that want to be verified; they may keep half of what is
                left. A prompt in one piece may need every row.
        """
        if not self._limits.chunked:
            return left
        kept = min(num_draft_rows, left // 2)
        return min(left - kept, self._within_time(left, decoding, kept))

    def plan(self, budget: int) -> list[tuple[Request, int]]:
        """Running prompts and newly admitted ones, with their rows: at most `budget` in all.

        Up to max_partial prompts share the budget fairly. If all of them get what they need, the
        next ones share what is left, and so on: no more than max_partial stay unfinished.
        """
        prompts = self._prompts()
        granted: list[tuple[Request, int]] = []
        while budget > 0:
            group, passed = self._group(prompts)
            # The long ones among them are first in the next group.
            prompts = itertools.chain(passed, prompts)
            wants = [request.tokens.length - request.num_computed for request in group]
            shares = self._shares(wants, budget)
            granted += [pair for pair in zip(group, shares, strict=True) if pair[1] > 0]
            budget -= sum(shares)
            if not group or shares != wants:
                break
        return granted

    def _group(self, prompts: Iterator[Request]) -> tuple[list[Request], list[Request]]:
        """The next prompts that may be under way together, and long ones that they pass."""
        group: list[Request] = []
        passed: list[Request] = []
        num_long = 0
        while len(group) < self._limits.max_partial and (found := next(prompts, None)):
            if self._limits.is_long(found):
                if num_long == self._limits.max_long:
                    passed.append(found)
                    continue
                num_long += 1
            group.append(found)
        return group, passed

    def _prompts(self) -> Iterator[Request]:
        yield from list(self._started())
        yield from self._residents.admit()

    def _started(self) -> Iterator[Request]:
        for request in self._residents.running:
            if request.status is Status.RUNNING and not request.is_decoding:
                yield request

    def _shares(self, wants: list[int], budget: int) -> list[int]:
        if self._limits.chunked:
            return fair_shares(wants, budget)
        shares = []
        for want in wants:
            shares.append(want if want <= budget else 0)
            budget -= shares[-1]
        return shares

    def _within_time(self, left: int, decoding: Iterable[SequenceId], num_draft_rows: int) -> int:
        """Prompt rows, up to `left`, that keep the step within its time."""
        most_ms = self._limits.max_step_ms
        if most_ms is None:
            return left
        lengths = [self._length(sequence_id) for sequence_id in decoding]
        if not lengths:
            # Without decoding sequences there is nobody whom a long step delays.
            return left
        num_reads = sum(lengths) + num_draft_rows * sum(lengths) // len(lengths)
        load = StepLoad(len(lengths) + num_draft_rows, num_reads)
        started = (request.num_computed for request in self._started())
        left_ms = most_ms - self._step_time.predict_ms(load)
        fitting = self._step_time.rows_within(left_ms, next(started, 0), left)
        # A fit knows little of chunks that are larger than all before: at most twice as large.
        return max(min(fitting, 2 * self._proven), LEAST_ROWS)

    def _length(self, sequence_id: SequenceId) -> int:
        request = self._residents.get(sequence_id)
        assert request is not None
        return request.tokens.length
