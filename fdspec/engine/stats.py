# SPDX-License-Identifier: Apache-2.0
"""EngineMonitor: counts what steps did and says how the engine stands. Called by the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fdspec.core import StepPlan, TokenEvent
from fdspec.core.protocols import BlockPool, KVHandoff
from fdspec.scheduler.topic.messages import EngineStats


class WatchedScheduler(Protocol):
    """What a scheduler shows of itself."""

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        ...

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for admission."""
        ...

    @property
    def num_preempted(self) -> int:
        """Times that a sequence lost its blocks, since the start."""
        ...

    @property
    def num_swapped(self) -> int:
        """Of those, times that its keys and values were kept outside the cache."""
        ...

    @property
    def num_prefix_queries(self) -> int:
        """Prompt tokens that were looked up in the prefix cache, since the start."""
        ...

    @property
    def num_prefix_hits(self) -> int:
        """Of those, tokens that were found."""
        ...

    def check(self) -> None:
        """Raise AssertionError if requests and blocks do not agree."""
        ...


class EngineMonitor:
    """Totals since the start, and the state of scheduler and pool on demand."""

    def __init__(self, scheduler: WatchedScheduler, pool: BlockPool, handoff: KVHandoff) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._handoff = handoff
        self._num_steps = 0
        self._num_rows = 0
        self._num_drafts = 0
        self._num_draft_tokens = 0
        self._num_accepted_tokens = 0

    def count(self, plan: StepPlan, events: Iterable[TokenEvent]) -> None:
        """Add a finished step."""
        self._num_steps += 1
        self._num_rows += plan.num_rows
        for event in events:
            if event.draft is not None:
                self._num_drafts += 1
                self._num_draft_tokens += event.draft.num_drafted
                self._num_accepted_tokens += event.draft.num_accepted

    def check(self) -> None:
        """Raise AssertionError if requests and blocks do not agree. Does not modify."""
        self._scheduler.check()

    def stats(self) -> EngineStats:
        """The state now. Does not modify."""
        handoff = self._handoff.counts()
        return EngineStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            num_blocks=self._pool.num_blocks,
            num_free_blocks=self._pool.num_free(),
            num_empty_blocks=self._pool.num_empty(),
            num_preempted_total=self._scheduler.num_preempted,
            num_swapped_total=self._scheduler.num_swapped,
            num_steps_total=self._num_steps,
            num_rows_total=self._num_rows,
            num_drafts_total=self._num_drafts,
            num_draft_tokens_total=self._num_draft_tokens,
            num_accepted_tokens_total=self._num_accepted_tokens,
            num_prefix_queries_total=self._scheduler.num_prefix_queries,
            num_prefix_hits_total=self._scheduler.num_prefix_hits,
            num_handoffs_open=self._handoff.num_open,
            num_offered_total=handoff.num_offered,
            num_loaded_total=handoff.num_loaded,
            num_load_failures_total=handoff.num_failed,
            num_loaded_bytes_total=handoff.num_bytes,
            load_ms_total=handoff.load_ms,
        )
