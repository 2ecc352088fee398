# SPDX-License-Identifier: Apache-2.0
"""HandoffSource: the offers of a prefill process, and who may still read which blocks.

A state machine without threads, sockets or a clock of its own: `server.py` brings the calls of
peers and the time. It frees every offer's blocks exactly once, whatever peers do.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from fdspec.transfer.layout import KVLayout
from fdspec.transfer.messages import Abort, Accept, Answer, Call, Done, Renew
from fdspec.transfer.offer import (
    VERSION,
    Completion,
    Endpoint,
    Offer,
    OfferKey,
    OfferRef,
    Progress,
    check_completion,
)


@dataclass(slots=True)
class _Held:
    """One offer that has not been freed.

    Attributes:
        offer: as the peer has it; the completion is put in when there is one.
        progress: how much can be read.
        end_s: when the lease ends; never before the completion.
    """

    offer: Offer
    progress: Progress = field(default_factory=Progress)
    end_s: float = math.inf


@dataclass(slots=True)
class SourceCounts:
    """How offers ended, since the start. `late` counts calls for offers that had ended."""

    opened: int = 0
    done: int = 0
    aborted: int = 0
    expired: int = 0
    withdrawn: int = 0
    late: int = 0


class HandoffSource:
    """Offers under leases.

    Args:
        boot_id: names this process.
        layout: of its cache.
        num_blocks: of its cache.
        control: ZMQ address where calls arrive.
        control_key: its public CURVE key, or empty.
        endpoints: ways to the blocks.
        lease_s: how long a complete offer is held without a renewal.
        renew_s: how long a renewal holds it; never shortens a lease.
        free: takes the blocks of an ended offer, once; must not call back.

    Attributes:
        counts: how offers ended.
    """

    def __init__(
        self,
        *,
        boot_id: str,
        layout: KVLayout,
        num_blocks: int,
        control: str,
        control_key: bytes = b"",
        endpoints: tuple[Endpoint, ...],
        lease_s: float,
        renew_s: float,
        free: Callable[[tuple[int, ...]], None],
    ) -> None:
        self._boot_id = boot_id
        self._layout = layout
        self._layout_digest = layout.digest
        self._num_blocks = num_blocks
        self._control = control
        self._control_key = control_key
        self._endpoints = endpoints
        self._lease_s = lease_s
        self._renew_s = renew_s
        self._free = free
        self._held: dict[OfferKey, _Held] = {}
        self._num_holders: Counter[int] = Counter()
        self._generations: Counter[int] = Counter()
        self.counts = SourceCounts()

    def __len__(self) -> int:
        return len(self._held)

    def open(self, key: OfferKey, block_ids: Iterable[int], num_tokens: int) -> Offer:
        """Offer blocks whose prompt may still be being computed.

        The caller keeps them as they are until `free` has them, and calls `complete` or `withdraw`.

        Args:
            key: a sequence, and the epoch of its lease; not offered already.
            block_ids: in order of position.
            num_tokens: that they will hold.
        """
        blocks = tuple(block_ids)
        assert key not in self._held, f"{key} is offered already"
        assert blocks and all(0 <= block < self._num_blocks for block in blocks), blocks
        self._num_holders.update(blocks)
        ref = OfferRef(
            self._boot_id, *key, secrets.token_bytes(16), tuple(map(self.generation, blocks))
        )
        offer = Offer(
            version=VERSION,
            ref=ref,
            layout=self._layout,
            block_ids=blocks,
            num_tokens=num_tokens,
            control=self._control,
            control_key=self._control_key,
            endpoints=self._endpoints,
            lease_s=self._lease_s,
        )
        self._held[key] = _Held(offer)
        self.counts.opened += 1
        return offer

    def advance(self, key: OfferKey, progress: Progress) -> None:
        """More of an offer has been computed; an offer that has ended is ignored."""
        held = self._held.get(key)
        if held is not None and held.offer.completion is None:
            held.progress = progress

    def complete(self, key: OfferKey, completion: Completion, now_s: float) -> Offer | None:
        """All of an offer has been computed; its lease starts.

        Returns:
            The offer with its completion; None if a peer has aborted it.

        Raises:
            WireError: the drafter's state is too large to be sent.
        """
        check_completion(completion)
        held = self._held.get(key)
        if held is None:
            return None
        held.offer = msgspec.structs.replace(held.offer, completion=completion)
        held.progress = Progress(num_blocks=len(held.offer.block_ids))
        held.end_s = now_s + self._lease_s
        return held.offer

    def withdraw(self, key: OfferKey) -> None:
        """Free an offer because its request has ended here; one that has ended is ignored."""
        if key in self._held:
            self._end(key)
            self.counts.withdrawn += 1

    def withdraw_all(self) -> None:
        """Free every offer."""
        for key in list(self._held):
            self.withdraw(key)

    def offer(self, key: OfferKey) -> Offer | None:
        """An offer that is held. Does not modify."""
        held = self._held.get(key)
        return None if held is None else held.offer

    def handle(self, call: Call, now_s: float) -> Answer | None:
        """A peer's call; None if it wants no answer.

        Calls for an offer that has ended, or with another boot id, secret or generations, change
        nothing.
        """
        ref = call.ref
        key = ref.key
        held = self._find(ref, now_s)
        if held is None:
            self.counts.late += 1
        elif isinstance(call, Done):
            self.counts.done += 1
            self._end(key)
        elif isinstance(call, Abort):
            self.counts.aborted += 1
            self._end(key)
        if isinstance(call, Done | Abort):
            return None
        if held is None:
            return Answer(call.number, *key, state="gone")
        if isinstance(call, Accept) and call.layout_digest != self._layout_digest:
            detail = f"the layout here is {self._layout}"
            return Answer(call.number, *key, state="refused", detail=detail)
        held.end_s = max(held.end_s, now_s + self._renew_s)
        if isinstance(call, Renew):
            return Answer(call.number, *key, state="held", progress=held.progress)
        return self.news(key, call.number)

    def news(self, key: OfferKey, number: int = 0) -> Answer:
        """What a peer that has accepted an offer should know now. Does not modify."""
        held = self._held.get(key)
        if held is None:
            return Answer(number, *key, state="gone")
        completion = held.offer.completion
        return Answer(number, *key, state="held", progress=held.progress, completion=completion)

    def blocks_of(self, ref: OfferRef, now_s: float) -> tuple[int, ...] | None:
        """The blocks that the holder of a ref may read now; None if none. Does not modify."""
        held = self._find(ref, now_s)
        return None if held is None else held.offer.block_ids

    def generation(self, block_id: int) -> int:
        """How often a block has been given back by its last offer. Does not modify."""
        return self._generations[block_id]

    def sweep(self, now_s: float) -> int:
        """Free offers whose lease has ended; returns how many."""
        ended = [key for key, held in self._held.items() if held.end_s <= now_s]
        for key in ended:
            self._end(key)
        self.counts.expired += len(ended)
        return len(ended)

    def check(self) -> None:
        """Raise AssertionError if the books do not balance. Does not modify."""
        blocks = Counter(b for held in self._held.values() for b in held.offer.block_ids)
        assert blocks == +self._num_holders, (blocks, self._num_holders)
        counts = self.counts
        ended = counts.done + counts.aborted + counts.expired + counts.withdrawn
        assert counts.opened == ended + len(self._held), counts

    def _find(self, ref: OfferRef, now_s: float) -> _Held | None:
        held = self._held.get(ref.key)
        if held is None or held.end_s <= now_s:
            return None
        mine = held.offer.ref
        is_same = hmac.compare_digest(mine.secret, ref.secret) and mine == ref
        return held if is_same else None

    def _end(self, key: OfferKey) -> None:
        blocks = self._held.pop(key).offer.block_ids
        self._num_holders.subtract(blocks)
        # A block that another offer holds too keeps what it holds.
        self._generations.update(block for block in blocks if not self._num_holders[block])
        self._free(blocks)
