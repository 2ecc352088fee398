# SPDX-License-Identifier: Apache-2.0
"""Residents: which requests run, which wait, and which blocks each running one holds.

The only caller of the block pool. Never looks at drafts, verdicts or the token budget; the batch
scheduler decides when to call what.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import insort
from collections.abc import Iterator

from fdspec.core import Request, SequenceId, Status
from fdspec.core.protocols import BlockPool


class Residents:
    """All requests in service, in the order of (priority, arrival).

    A running request holds blocks for at least all its computed tokens; a waiting one holds none.

    Attributes:
        running: requests that hold blocks, in order of service. Read only for callers.
        num_preempted: times that a request lost its blocks, since the start.
    """

    def __init__(self, pool: BlockPool, max_num_seqs: int) -> None:
        self.running: list[Request] = []
        self.num_preempted = 0
        self._pool = pool
        self._block_size = pool.block_size
        self._max_num_seqs = max_num_seqs
        self._requests: dict[SequenceId, Request] = {}
        self._waiting: list[tuple[int, int, Request]] = []  # heap; may hold finished requests
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, sequence_id: SequenceId) -> Request | None:
        """The request of that name, running or waiting. Does not modify."""
        return self._requests.get(sequence_id)

    def choices_of(self, request_id: str) -> list[Request]:
        """All choices of a request that are still in service. Does not modify."""
        return [r for key, r in self._requests.items() if key[0] == request_id]

    def enter(self, request: Request) -> None:
        """Take a new request; it waits."""
        request.arrival = next(self._arrivals)
        self._requests[request.sequence_id] = request
        self._wait(request)

    def leave(self, request: Request) -> None:
        """End a request, running or waiting; its blocks are free at once."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
        request.status = Status.FINISHED
        del self._requests[request.sequence_id]
        self._release_all(request)

    def admit(self) -> Iterator[Request]:
        """Run waiting requests, one by one, for as long as they fit.

        Each gets blocks for all its known tokens. Nobody overtakes one that waits for blocks.
        """
        while len(self.running) < self._max_num_seqs and self._waiting:
            request = self._waiting[0][2]
            if request.status is Status.WAITING:
                block_ids = self._pool.allocate(self.blocks_for(len(request.tokens)))
                if block_ids is None:
                    return
                request.block_ids = tuple(block_ids)
                request.status = Status.RUNNING
                insort(self.running, request, key=_service_order)
            heapq.heappop(self._waiting)
            if request.status is Status.RUNNING:
                yield request

    def reserve(self, request: Request, num_slots: int) -> bool:
        """Blocks for num_slots of a running request, at the cost of those that come after it.

        Returns:
            False if it comes last and no block is free; it keeps what it has.
        """
        missing = self.blocks_for(num_slots) - len(request.block_ids)
        if missing <= 0:
            return True
        while (block_ids := self._pool.allocate(missing)) is None:
            last = self.running[-1]
            if last is request:
                return False
            self._preempt(last)
        request.block_ids += tuple(block_ids)
        return True

    def reserve_free(self, request: Request, num_slots: int) -> int:
        """The same from free blocks only; returns how many slots, up to num_slots, it has then."""
        missing = self.blocks_for(num_slots) - len(request.block_ids)
        if missing > 0:
            block_ids = self._pool.allocate(min(missing, self._pool.num_free()))
            assert block_ids is not None
            request.block_ids += tuple(block_ids)
        return min(num_slots, len(request.block_ids) * self._block_size)

    def release_unused(self, request: Request) -> None:
        """Give back the blocks behind the newest token, which drafts had taken."""
        needed = self.blocks_for(request.tokens.length)
        if len(request.block_ids) > needed:
            self._pool.release(reversed(request.block_ids[needed:]))
            request.block_ids = request.block_ids[:needed]

    def blocks_for(self, num_slots: int) -> int:
        """Blocks that hold num_slots cache slots. Does not modify."""
        return -(-num_slots // self._block_size)

    def check(self) -> None:
        """Raise AssertionError if requests and blocks do not agree. Does not modify."""
        self._pool.check()
        held = [block_id for request in self.running for block_id in request.block_ids]
        assert len(held) == len(set(held)), "two sequences hold the same block"
        assert len(held) == self._pool.num_blocks - self._pool.num_free(), "a block has no holder"
        assert len(self.running) <= self._max_num_seqs
        assert self.running == sorted(self.running, key=_service_order)
        running = {request.sequence_id for request in self.running}
        assert len(running) == len(self.running)
        waiting = {r.sequence_id for _, _, r in self._waiting if r.status is Status.WAITING}
        assert running | waiting == set(self._requests) and not running & waiting
        for request in self._requests.values():
            if request.sequence_id in running:
                assert request.status is Status.RUNNING
                assert request.num_computed < len(request.tokens)
                assert len(request.block_ids) >= self.blocks_for(request.num_computed)
            else:
                assert request.status is Status.WAITING
                assert request.num_computed == 0 and not request.block_ids

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release_all(request)
        request.num_computed = 0
        request.num_preempted += 1
        self.num_preempted += 1
        self._wait(request)

    def _wait(self, request: Request) -> None:
        request.status = Status.WAITING
        heapq.heappush(self._waiting, (*_service_order(request), request))

    def _release_all(self, request: Request) -> None:
        self._pool.release(reversed(request.block_ids))
        request.block_ids = ()


def _service_order(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival
