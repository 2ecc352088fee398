# SPDX-License-Identifier: Apache-2.0
"""PrefillHandoff: a prefill engine's end of the handoff; gives departing sequences their offers."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Sequence

from fdspec.core import FinishReason, SequenceId, StepPlan, Submit, TokenEvent
from fdspec.core.handoff import NO_NEWS, Departure, HandoffCounts, HandoffNews
from fdspec.transfer import Completion, HandoffServer, encode_offer

MakeServer = Callable[[Callable[[tuple[int, ...]], None]], HandoffServer]


class PrefillHandoff:
    """Offers what departs, and says when its blocks are not read any more.

    Implements `core.protocols.KVHandoff`. Inside an engine a request goes by the epoch of its
    lease, which is new for each delivery, so that a sequence is offered once.

    Args:
        make_server: makes the server, which reports blocks that are free to what it is given.
    """

    def __init__(self, make_server: MakeServer) -> None:
        # Written by the server's thread.
        self._returned: queue.SimpleQueue[tuple[int, ...]] = queue.SimpleQueue()
        self._server = make_server(self._returned.put)
        self._num_offered = 0

    @property
    def num_open(self) -> int:
        """Offers that somebody may still read. Does not modify."""
        return self._server.num_open

    @property
    def address(self) -> str:
        """Where decode engines ask for offers. Does not modify."""
        return self._server.address

    def hold(self, submit: Submit) -> None:
        """Offers of others do not come here."""

    def news(self) -> HandoffNews:
        """Blocks of offers that have ended."""
        if self._returned.empty():
            return NO_NEWS
        returned = []
        while not self._returned.empty():
            returned.append(self._returned.get_nowait())
        return HandoffNews(returned=tuple(returned))

    def begin(self, plan: StepPlan) -> None:
        """Nothing is loaded here."""
        assert not plan.loads

    def end(
        self, events: Sequence[TokenEvent], departures: Sequence[Departure]
    ) -> list[TokenEvent]:
        """Offer what departs."""
        if not departures:
            return list(events)
        by_id = {departure.sequence_id: departure for departure in departures}
        return [
            event._replace(offer=self._offer(by_id[event.request_id, event.choice], event))
            if event.finish is FinishReason.HANDOFF
            else event
            for event in events
        ]

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Nothing is kept of a sequence that ends here."""

    def counts(self) -> HandoffCounts:
        """Totals since the start. Does not modify."""
        return HandoffCounts(num_offered=self._num_offered)

    def close(self) -> None:
        """Stop; what is still offered is not there any more."""
        self._server.close()

    def _offer(self, departure: Departure, event: TokenEvent) -> bytes:
        key = (*departure.sequence_id, 0)
        self._server.open(key, departure.block_ids, departure.num_tokens)
        offer = self._server.complete(key, Completion(first_token=event.tokens[-1]))
        assert offer is not None, "nobody knows of it yet"
        self._num_offered += 1
        return encode_offer(offer)
