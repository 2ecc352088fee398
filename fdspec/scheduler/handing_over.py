# SPDX-License-Identifier: Apache-2.0
"""HandingOver: sequences that leave for other engines, and tokens that come with loads.

The batch scheduler's part in the handoff; blocks are `Residents`'. Knows no role and no transport.
"""

from __future__ import annotations

from fdspec.core import FinishReason, Request, Status, TokenEvent
from fdspec.core.handoff import Departure, HandoffNews, LoadEnd
from fdspec.scheduler.residents import Residents


class HandingOver:
    """Departures, and ends of loads.

    Args:
        residents: the requests.
        is_on: True if every sequence goes on elsewhere after its next token.
    """

    def __init__(self, residents: Residents, *, is_on: bool) -> None:
        self._residents = residents
        self._is_on = is_on
        self._departures: list[Departure] = []

    def hand_over(self, request: Request, event: TokenEvent) -> TokenEvent:
        """A running request has a new token; it leaves if sequences do, and has not ended."""
        if not self._is_on or event.finish is not None:
            return event
        departure = self._residents.depart(request)
        if departure is not None:
            self._departures.append(departure)
        return event._replace(finish=FinishReason.HANDOFF)

    def take_departures(self) -> list[Departure]:
        """Those that have left since the last call, but for those offered before."""
        departures, self._departures = self._departures, []
        return departures

    def settle(self, news: HandoffNews) -> list[TokenEvent]:
        """Take what has happened; returns tokens that came with loads."""
        events = [event for end in news.ends if (event := self._next_token(end)) is not None]
        self._residents.settle(news)
        for event in events:
            if event.finish is not None:
                request = self._residents.get((event.request_id, event.choice))
                assert request is not None
                self._residents.leave(request)
        return events

    def _next_token(self, end: LoadEnd) -> TokenEvent | None:
        request = self._residents.get(end.sequence_id)
        if end.event is None or request is None or request.status is not Status.LOADING:
            return None
        index = request.num_output
        request.tokens.append(end.event.tokens)
        request_id, choice = end.sequence_id
        return end.event._replace(request_id=request_id, choice=choice, index=index)
