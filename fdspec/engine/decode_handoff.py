# SPDX-License-Identifier: Apache-2.0
"""DecodeHandoff: a decode engine's end of the handoff; loads what is offered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fdspec.core import SequenceId, StepPlan, Submit, TokenEvent
from fdspec.core.handoff import (
    NO_NEWS,
    Departure,
    HandoffCounts,
    HandoffNews,
    KVLoad,
    LoadEnd,
)
from fdspec.scheduler.topic.codec import CodecError, decode
from fdspec.transfer import (
    HandoffSink,
    LayoutMismatch,
    Offer,
    OfferKey,
    PullResult,
    WireError,
    decode_offer,
)
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)


class DecodeHandoff:
    """Holds offers until their requests have blocks, and then pulls.

    Implements `core.protocols.KVHandoff`. Whatever goes wrong, the load ends badly and the engine
    computes the tokens itself.

    Args:
        sink: pulls into the engine's cache.
    """

    def __init__(self, sink: HandoffSink) -> None:
        self._sink = sink
        # Offers of requests that wait for blocks, and loads that have not ended.
        self._held: dict[SequenceId, Offer] = {}
        # And whether their next token comes with them.
        self._loads: dict[OfferKey, tuple[KVLoad, bool]] = {}
        self._refused: list[LoadEnd] = []
        self._counts = HandoffCounts()

    @property
    def num_open(self) -> int:
        """Loads that have not ended. Does not modify."""
        return len(self._loads)

    def hold(self, submit: Submit) -> None:
        """Keep the leases of a request's offers alive."""
        for choice, data in enumerate(submit.offers):
            if not data:
                continue
            try:
                offer = decode_offer(data)
            except WireError as error:
                logger.warning("an offered KV cache cannot be read: %s", error)
                continue
            self._held[submit.request_id, choice] = offer
            self._sink.hold(offer)

    def news(self) -> HandoffNews:
        """Loads that have ended, and blocks that are quiet at last."""
        if not self._loads and not self._refused:
            returned = tuple(self._sink.take_quiet())
            return HandoffNews(returned=returned) if returned else NO_NEWS
        ends = [*self._refused, *map(self._end_of, self._sink.poll())]
        self._refused.clear()
        # After the ends: blocks that are not quiet are known only from these.
        return HandoffNews(tuple(ends), tuple(self._sink.take_quiet()))

    def begin(self, plan: StepPlan) -> list[TokenEvent]:
        """Start the step's loads."""
        for load in plan.loads:
            offer = self._held.pop(load.sequence_id, None)
            reason = "it cannot be read" if offer is None else self._start(offer, load)
            if reason:
                self._note_failure(load, reason)
                self._refused.append(LoadEnd(load.sequence_id, False))
        return []

    def end(
        self, plan: StepPlan, events: Sequence[TokenEvent], departures: Sequence[Departure]
    ) -> list[TokenEvent]:
        """The events as they are."""
        assert not departures, "a decode engine goes on to the end"
        return list(events)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Let go of what ended sequences were offered."""
        for sequence_id in sequence_ids:
            offer = self._held.pop(sequence_id, None)
            if offer is not None:
                self._sink.drop(offer)
            if self._loads:
                for key, (load, _) in self._loads.items():
                    if load.sequence_id == sequence_id:
                        self._sink.abort(key)

    def counts(self) -> HandoffCounts:
        """Totals since the start. Does not modify."""
        return self._counts

    def close(self) -> None:
        """Abort what is being loaded, and stop."""
        self._sink.close()

    def _start(self, offer: Offer, load: KVLoad) -> str:
        """Begin to pull; returns why that is not possible, or nothing."""
        num_blocks = len(offer.block_ids)
        if offer.num_tokens not in (load.num_tokens - 1, load.num_tokens) or not (
            load.num_present <= num_blocks <= len(load.block_ids)
        ):
            self._sink.drop(offer)
            return f"it has {offer.num_tokens} tokens in {num_blocks} blocks"
        try:
            self._sink.start(offer, load.block_ids[:num_blocks], load.num_present)
        except LayoutMismatch as error:
            self._sink.drop(offer)
            return str(error)
        self._loads[offer.ref.key] = load, offer.num_tokens == load.num_tokens
        return ""

    def _end_of(self, result: PullResult) -> LoadEnd:
        load, has_next = self._loads.pop(result.key)
        is_loaded = result.outcome == "loaded"
        event = None
        if is_loaded and has_next:
            event = _next_token(result)
            if event is None:
                is_loaded, result = False, replace(result, reason="its next token cannot be read")
        counts = self._counts
        if is_loaded:
            self._counts = counts._replace(
                num_loaded=counts.num_loaded + 1,
                num_bytes=counts.num_bytes + result.num_bytes,
                load_ms=counts.load_ms + 1000 * result.seconds,
            )
            logger.debug(
                "took over %d tokens (%d bytes) by %s in %.1f ms",
                *(load.num_tokens, result.num_bytes, result.transport, 1000 * result.seconds),
            )
        elif result.outcome != "aborted":
            self._note_failure(load, result.reason)
        return LoadEnd(load.sequence_id, is_loaded, result.is_quiet, event)

    def _note_failure(self, load: KVLoad, reason: str) -> None:
        self._counts = self._counts._replace(num_failed=self._counts.num_failed + 1)
        logger.warning(
            "a KV cache could not be taken over (%s); computing %d tokens again",
            *(reason, load.num_tokens),
        )


def _next_token(result: PullResult) -> TokenEvent | None:
    """The event that a prefill engine has put into the completion; None if there is none."""
    if result.completion is None:
        return None
    try:
        events = decode(result.completion.first_event)
    except CodecError:
        return None
    return events[0] if isinstance(events, tuple) and len(events) == 1 else None
