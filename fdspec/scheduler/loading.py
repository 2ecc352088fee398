# SPDX-License-Identifier: Apache-2.0
"""Loading: blocks that are filled from another process's cache, and blocks that are lent.

Knows blocks by number; who copies is `fdspec/transfer`. Called by `Residents`, which owns the
requests. A lent block is held by nobody's request, and is not free.
"""

from __future__ import annotations

from collections import Counter

from fdspec.core import Request, SequenceId, Status
from fdspec.core.handoff import Departure, KVLoad, LoadEnd
from fdspec.core.protocols import BlockPool


class Loading:
    """Loads from their plan to their end, and lent blocks until they come back."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._planned: list[KVLoad] = []
        # Loads of requests in service, and of others that have ended since.
        self._filling: dict[SequenceId, KVLoad] = {}
        self._abandoned: dict[SequenceId, KVLoad] = {}
        self._lent: Counter[int] = Counter()
        self._departing: list[Departure] = []
        self._open: set[SequenceId] = set()

    def begin(self, request: Request, num_present: int) -> None:
        """Fill the blocks of a request, which holds enough for all its tokens.

        Args:
            request: with an offer; LOADING from now on.
            num_present: its first blocks that hold the right tokens already.
        """
        load = KVLoad(
            request.sequence_id,
            request.offer,
            request.block_ids,
            num_present,
            request.tokens.length,
        )
        self._planned.append(load)
        self._filling[request.sequence_id] = load
        request.status = Status.LOADING
        request.offer = b""

    def open(self, request: Request) -> None:
        """Offer a request whose prompt is about to be computed; its blocks are lent beside it."""
        self._pool.share(request.block_ids)
        self.lend(request.block_ids)
        self._open.add(request.sequence_id)
        self._departing.append(
            Departure(
                request.sequence_id, request.block_ids, request.tokens.length, request.num_output
            )
        )

    def close(self, request: Request) -> bool:
        """A request ends; True if it was offered."""
        was_open = request.sequence_id in self._open
        self._open.discard(request.sequence_id)
        return was_open

    def take_departing(self) -> tuple[Departure, ...]:
        """Requests that were opened since the last call."""
        departing = tuple(self._departing)
        self._departing.clear()
        return departing

    def take_planned(self) -> tuple[KVLoad, ...]:
        """Loads that have begun since the last call."""
        planned = tuple(self._planned)
        self._planned.clear()
        return planned

    def end(self, end: LoadEnd) -> KVLoad | None:
        """A load has ended; returns it if its request is still in service.

        The blocks of another one are free, or are lent until they are quiet.
        """
        load = self._filling.pop(end.sequence_id, None)
        if load is None:
            abandoned = self._abandoned.pop(end.sequence_id)
            if end.is_quiet:
                self.take_back(abandoned.block_ids[abandoned.num_present :])
        return load

    def withdraw(self, request: Request) -> tuple[int, ...]:
        """A request stops; returns the blocks that it still holds: not those being filled."""
        load = self._filling.pop(request.sequence_id, None)
        if load is None:
            return request.block_ids
        self._abandoned[request.sequence_id] = load
        return self.keep_unquiet(request, load)

    def keep_unquiet(self, request: Request, load: KVLoad) -> tuple[int, ...]:
        """Lend what a load may still write; returns the other blocks of its request."""
        start, end = load.num_present, len(load.block_ids)
        self.lend(request.block_ids[start:end])
        return request.block_ids[:start] + request.block_ids[end:]

    def lend(self, block_ids: tuple[int, ...]) -> None:
        """A request's hold on these blocks goes to whoever reads or writes them."""
        self._lent.update(block_ids)

    def take_back(self, block_ids: tuple[int, ...]) -> None:
        """Lent blocks are free, as far as nobody else holds them."""
        for block_id in block_ids:
            assert self._lent[block_id] > 0, f"block {block_id} is not lent"
        self._lent.subtract(block_ids)
        self._pool.release(reversed(block_ids))

    def num_lent(self, block_id: int) -> int:
        """How often a block is lent. Does not modify."""
        return self._lent[block_id]

    def lent(self) -> Counter[int]:
        """How often each block is lent. Does not modify."""
        return +self._lent

    def check(self, requests: list[Request]) -> None:
        """Raise AssertionError if others than these are being filled, or offered."""
        loading = {r.sequence_id for r in requests if r.status is Status.LOADING}
        assert loading == self._filling.keys(), "a load is lost"
        assert not self._planned or loading >= {load.sequence_id for load in self._planned}
        assert self._open <= {request.sequence_id for request in requests}
