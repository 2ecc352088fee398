# SPDX-License-Identifier: Apache-2.0
"""PrefillHandoff: a prefill engine's end of the handoff; gives departing sequences their offers."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fdspec.core import FinishReason, SequenceId, StepPlan, Submit, TokenEvent
from fdspec.core.handoff import NO_NEWS, Departure, HandoffCounts, HandoffNews
from fdspec.scheduler.topic.codec import encode
from fdspec.transfer import Completion, HandoffServer, OfferKey, encode_offer

MakeServer = Callable[[Callable[[tuple[int, ...]], None]], HandoffServer]


@dataclass(frozen=True, slots=True)
class LayerCounter:
    """How far the running step is.

    Attributes:
        count: layers whose keys and values are in the cache, see `transfer/step_watch.py`.
        num_layers: what it counts up to.
    """

    count: Callable[[], int]
    num_layers: int


class PrefillHandoff:
    """Offers what departs, and says when its blocks are not read any more.

    Implements `core.protocols.KVHandoff`. Inside an engine a request goes by the epoch of its
    lease, which is new for each delivery, so that a sequence is offered once.

    What departs early is offered before its prompt is computed. Its next token, and its end if it
    ends with that, are not told here but travel with the last of its keys and values.

    Args:
        make_server: makes the server, which reports blocks that are free to what it is given.
        block_size: tokens in a block.
        layers: lets others read the layers of the running step; None only whole steps.
    """

    def __init__(
        self, make_server: MakeServer, *, block_size: int, layers: LayerCounter | None = None
    ) -> None:
        self._block_size = block_size
        self._layers = layers
        self._early: set[SequenceId] = set()
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

    def begin(self, plan: StepPlan) -> list[TokenEvent]:
        """Offer what departs early, and let others read the step as it goes on."""
        assert not plan.loads, "only decode engines load"
        offers = [self._open(departure) for departure in plan.departing]
        if self._layers is not None and (num_blocks := self._num_blocks_after(plan)):
            self._server.computing(num_blocks, self._layers.count, self._layers.num_layers)
        return offers

    def end(
        self, plan: StepPlan, events: Sequence[TokenEvent], departures: Sequence[Departure]
    ) -> list[TokenEvent]:
        """Offer what departs, and complete what was offered before."""
        if num_blocks := self._num_blocks_after(plan):
            self._server.advance(num_blocks)
        by_id = {departure.sequence_id: departure for departure in departures}
        told = []
        for event in events:
            sequence_id = event.request_id, event.choice
            if sequence_id in self._early:
                self._complete(sequence_id, event)
            elif event.finish is FinishReason.HANDOFF:
                told.append(event._replace(offer=self._offer(by_id[sequence_id], event)))
            else:
                told.append(event)
        return told

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Withdraw offers of sequences that end before they are complete."""
        if self._early:
            for sequence_id in self._early.intersection(sequence_ids):
                self._early.remove(sequence_id)
                self._server.withdraw(_key(sequence_id))

    def counts(self) -> HandoffCounts:
        """Totals since the start. Does not modify."""
        return HandoffCounts(num_offered=self._num_offered)

    def close(self) -> None:
        """Stop; what is still offered is not there any more."""
        self._server.close()

    def _open(self, departure: Departure) -> TokenEvent:
        offer = self._server.open(
            _key(departure.sequence_id), departure.block_ids, departure.num_tokens
        )
        self._early.add(departure.sequence_id)
        request_id, choice = departure.sequence_id
        return TokenEvent(
            request_id,
            choice,
            departure.num_output,
            (),
            finish=FinishReason.HANDOFF,
            offer=encode_offer(offer),
        )

    def _num_blocks_after(self, plan: StepPlan) -> dict[OfferKey, int]:
        """Complete blocks of each early offer that the step computes rows of, at its end."""
        if not self._early:
            return {}
        return {
            _key(sequence.sequence_id): len(sequence.history) // self._block_size
            for sequence in plan.sequences
            if sequence.sequence_id in self._early
        }

    def _complete(self, sequence_id: SequenceId, event: TokenEvent) -> None:
        self._early.remove(sequence_id)
        if event.finish is FinishReason.HANDOFF:
            event = event._replace(finish=None)
        completion = Completion(first_token=event.tokens[-1], first_event=encode((event,)))
        # None: whoever read it does not want it any more.
        if self._server.complete(_key(sequence_id), completion) is not None:
            self._num_offered += 1

    def _offer(self, departure: Departure, event: TokenEvent) -> bytes:
        key = _key(departure.sequence_id)
        self._server.open(key, departure.block_ids, departure.num_tokens)
        offer = self._server.complete(key, Completion(first_token=event.tokens[-1]))
        assert offer is not None, "nobody knows of it yet"
        self._num_offered += 1
        return encode_offer(offer)


def _key(sequence_id: SequenceId) -> OfferKey:
    return (*sequence_id, 0)
