# SPDX-License-Identifier: Apache-2.0
"""NoHandoff: the handoff of an engine that does both jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fdspec.core import SequenceId, StepPlan, Submit, TokenEvent
from fdspec.core.handoff import NO_NEWS, Departure, HandoffCounts, HandoffNews, LoadEnd


class NoHandoff:
    """Nothing departs, and offers of others are refused, so that prompts are computed here.

    Implements `core.protocols.KVHandoff`.
    """

    num_open = 0

    def __init__(self) -> None:
        self._num_failed = 0
        self._refused: tuple[LoadEnd, ...] = ()

    def hold(self, submit: Submit) -> None:
        """Nothing is held; the offers' leases run out."""

    def news(self) -> HandoffNews:
        """The refusals since the last call."""
        if not self._refused:
            return NO_NEWS
        news, self._refused = HandoffNews(self._refused), ()
        return news

    def begin(self, plan: StepPlan) -> list[TokenEvent]:
        """Refuse the step's loads."""
        if plan.loads:
            self._refused = tuple(LoadEnd(load.sequence_id, False) for load in plan.loads)
            self._num_failed += len(plan.loads)
        return []

    def end(
        self, plan: StepPlan, events: Sequence[TokenEvent], departures: Sequence[Departure]
    ) -> list[TokenEvent]:
        """The events as they are."""
        assert not departures, "nobody would take them over"
        return list(events)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Nothing is kept."""

    def counts(self) -> HandoffCounts:
        """Only refusals. Does not modify."""
        return HandoffCounts(num_failed=self._num_failed)

    def close(self) -> None:
        """Nothing to free."""
