# SPDX-License-Identifier: Apache-2.0
"""Residents: which requests run, which wait, and which blocks each running one holds.

The only caller of the block pool. Never looks at drafts, verdicts or the token budget; the batch
scheduler decides when to call what.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator

from fdspec.core import Request, SequenceId, Status
from fdspec.core.handoff import Departure, HandoffNews, KVLoad, LoadEnd
from fdspec.core.protocols import BlockPool, Match
from fdspec.scheduler.loading import Loading
from fdspec.scheduler.prefix_sharing import PrefixSharing
from fdspec.scheduler.swapping import Swapping
from fdspec.scheduler.waiting import FairShares, WaitingQueue, service_order


class Residents:
    """All requests in service, in order of service: by priority, then by arrival or fair share.

    A running request holds blocks for at least all its computed tokens, some of them together with
    others; a waiting one holds none. One whose blocks are being filled from another process's cache
    is among the running ones, and loses them only when it ends.

    Attributes:
        running: requests that hold blocks, in order of service. Read only for callers.
        num_preempted: times that a request lost its blocks, since the start.
        sharing: what requests find in the cache; callers read its counters.
    """

    def __init__(
        self,
        pool: BlockPool,
        max_num_seqs: int,
        *,
        swapping: Swapping,
        fair_share_by_user: bool = False,
        opens_early: bool = False,
    ) -> None:
        self.running: list[Request] = []
        self.num_preempted = 0
        self.sharing = PrefixSharing(pool)
        self._pool = pool
        self._swapping = swapping
        self._block_size = pool.block_size
        self._max_num_seqs = max_num_seqs
        self._requests: dict[SequenceId, Request] = {}
        self._choices: dict[str, list[Request]] = {}
        self._queue = WaitingQueue()
        self._shares = FairShares() if fair_share_by_user else None
        self._arrivals = itertools.count()
        self._copies: list[tuple[int, int]] = []
        self._loading = Loading(pool)
        self._opens_early = opens_early

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, sequence_id: SequenceId) -> Request | None:
        """The request of that name, running or waiting. Does not modify."""
        return self._requests.get(sequence_id)

    def choices_of(self, request_id: str) -> list[Request]:
        """All choices of a request that are still in service. Does not modify."""
        return list(self._choices.get(request_id, ()))

    def enter(self, request: Request) -> None:
        """Take a new request; it waits."""
        request.arrival = next(self._arrivals)
        if self._shares is not None:
            num_tokens = request.num_prompt + (request.params.max_tokens or 0)
            request.turn = self._shares.take_turn(request.user, num_tokens)
        self._requests[request.sequence_id] = request
        self._choices.setdefault(request.sequence_id[0], []).append(request)
        self._queue.push(request)

    def leave(self, request: Request) -> None:
        """End a request, running or waiting; its blocks are free at once, and stay cached."""
        was_running = request.status is not Status.WAITING
        self._remove(request)
        if was_running:
            self._pool.release(reversed(self._stop(request)))
        else:
            self._queue.remove(request)
            self._swapping.forget(request)

    def depart(self, request: Request) -> Departure | None:
        """End a running request that goes on elsewhere; what it has computed is lent.

        Returns:
            None if it was offered before.
        """
        if self._loading.close(request):
            self.leave(request)
            return None
        num_tokens = request.num_computed
        self._remove(request)
        held = self._stop(request)
        num_blocks = self.blocks_for(num_tokens)
        self._pool.release(reversed(held[num_blocks:]))
        self._loading.lend(held[:num_blocks])
        return Departure(request.sequence_id, held[:num_blocks], num_tokens, request.num_output)

    def settle(self, news: HandoffNews) -> None:
        """Go on with what was loaded, compute what was not, and take back lent blocks."""
        for end in news.ends:
            load = self._loading.end(end)
            if load is not None:
                self._loaded(self._requests[end.sequence_id], load, end)
        for block_ids in news.returned:
            self._loading.take_back(block_ids)

    def take_handoffs(self) -> tuple[tuple[KVLoad, ...], tuple[Departure, ...]]:
        """For requests admitted since the last call: what to load, and who is offered early."""
        return self._loading.take_planned(), self._loading.take_departing()

    def admit(self) -> Iterator[Request]:
        """Run waiting requests, one by one, for as long as they fit.

        Those whose keys and values are offered by another process are loaded instead.

        Each gets blocks for all its known tokens, those that are cached among them. Nobody
        overtakes one that waits for blocks. Who needs a block next that a running request is about
        to compute waits for it, and lets others pass.
        """
        while len(self.running) < self._max_num_seqs:
            request = self._queue.first()
            if request is None:
                return
            match = self.sharing.match(request)
            if request.offer:
                # A block that is copied from and one that is loaded would be written at once.
                match = Match(match.block_ids)
            if request.swapped is None and self.sharing.hold(request, match):
                self._queue.remove(request)
            elif self._take_blocks(request, match):
                self._queue.admit(request)
                if self._shares is not None:
                    self._shares.served(request.turn)
                request.status = Status.RUNNING
                insort(self.running, request, key=service_order)
                num_found = len(match.block_ids) * self._block_size + match.num_partial
                num_found = self._swapping.swap_in(request, len(match.block_ids), num_found)
                self.sharing.begin(request, match, num_found)
                if request.offer:
                    self._loading.begin(request, len(match.block_ids))
                    continue
                if self._opens_early and request.params.prompt_logprobs is None:
                    self._loading.open(request)
                yield request
            else:
                return

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """(source, destination) of the blocks to copy for requests admitted since the last call."""
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

    def computed(self, request: Request, num_computed: int) -> None:
        """So many tokens of a running request are in the cache now."""
        request.num_computed = num_computed
        if num_computed // self._block_size > request.num_published:
            self._wake(self.sharing.publish(request))

    def forget_cached(self) -> None:
        """Empty the prefix cache; running requests publish their blocks anew."""
        self._pool.forget_cached()
        for request in self.running:
            request.num_published = 0

    def reserve(self, request: Request, num_slots: int) -> bool:
        """Blocks for num_slots of a running request, at the cost of those that come after it.

        Returns:
            False if it comes last and no block is free; it keeps what it has.
        """
        missing = self.blocks_for(num_slots) - len(request.block_ids)
        if missing <= 0:
            return True
        while (block_ids := self._pool.allocate(missing)) is None:
            last = next(r for r in reversed(self.running) if r.status is Status.RUNNING)
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
        self.sharing.check()
        self._swapping.check(list(self._requests.values()))
        self._loading.check(self.running)
        holders = Counter(block_id for request in self.running for block_id in request.block_ids)
        holders.update(self._loading.lent())
        for block_id in range(self._pool.num_blocks):
            assert holders[block_id] == self._pool.num_holders(block_id), f"block {block_id}"
        assert len(self.running) <= self._max_num_seqs
        assert self.running == sorted(self.running, key=service_order)
        running = {request.sequence_id for request in self.running}
        assert len(running) == len(self.running)
        waiting = [request.sequence_id for request in self._waiting()]
        assert len(waiting) == len(set(waiting)), "a request waits twice"
        assert running | set(waiting) == set(self._requests) and running.isdisjoint(waiting)
        assert sum(map(len, self._choices.values())) == len(self._requests)
        for request in self._requests.values():
            if request.sequence_id in running:
                self._check_running(request)
            else:
                assert request.status is Status.WAITING
                assert request.num_computed == 0 and not request.block_ids

    def _check_running(self, request: Request) -> None:
        assert request.status in (Status.RUNNING, Status.LOADING)
        assert request.num_computed < len(request.tokens)
        assert len(request.block_ids) >= self.blocks_for(request.num_computed)
        assert len(set(request.block_ids)) == len(request.block_ids)
        # Rows are written from the first token on that is not computed.
        for block_id in request.block_ids[request.num_computed // self._block_size :]:
            num_others = self._pool.num_holders(block_id) - self._loading.num_lent(block_id)
            assert num_others <= 1, "a shared block would be written"

    def _waiting(self) -> list[Request]:
        return [*self._queue.requests(), *self.sharing.held()]

    def _take_blocks(self, request: Request, match: Match) -> bool:
        """Share what was found and allocate the rest; False if there is not so much."""
        num_shared = len(match.block_ids)
        self._pool.share(match.block_ids)
        if match.partial_block is not None:
            self._pool.touch(match.partial_block)
        needed = self.blocks_for(request.tokens.length)
        block_ids = self._pool.allocate(needed - num_shared)
        if block_ids is None:
            self._pool.release(reversed(match.block_ids))
            return False
        request.block_ids = (*match.block_ids, *block_ids)
        # The source may be among what was given out, and later be written: but copies come first,
        # in this order, and rows after them.
        if match.partial_block is not None and match.partial_block != block_ids[0]:
            self._copies.append((match.partial_block, block_ids[0]))
        return True

    def _preempt(self, request: Request) -> None:
        self._swapping.swap_out(request, self.blocks_for(request.num_computed))
        request.num_preempted += 1
        self.num_preempted += 1
        self._wait_again(request, self._stop(request))

    def _wait_again(self, request: Request, held: tuple[int, ...]) -> None:
        self._pool.release(reversed(held))
        request.num_computed = 0
        request.status = Status.WAITING
        self._queue.push(request)

    def _loaded(self, request: Request, load: KVLoad, end: LoadEnd) -> None:
        request.status = Status.RUNNING
        if end.is_loaded:
            # With the load came the next token, or it was known already.
            self.computed(request, request.tokens.length - 1)
        elif not end.is_quiet:
            self._wait_again(request, self._stop(request, noisy=load))

    def _remove(self, request: Request) -> None:
        """Take a request out of service, but for its blocks or its place in the queue."""
        request.status = Status.FINISHED
        self._loading.close(request)
        del self._requests[request.sequence_id]
        choices = self._choices[request.sequence_id[0]]
        choices.remove(request)
        if not choices:
            del self._choices[request.sequence_id[0]]

    def _stop(self, request: Request, noisy: KVLoad | None = None) -> tuple[int, ...]:
        """Take a running request off its blocks; returns those to release, which stay cached.

        Not those of a load that has not ended, or that may still write though it has (noisy).
        """
        self.running.remove(request)
        self._wake(self.sharing.publish(request))
        self.sharing.publish_tail(request)
        self._wake(self.sharing.withdraw(request))
        if noisy is None:
            held = self._loading.withdraw(request)
        else:
            held = self._loading.keep_unquiet(request, noisy)
        request.block_ids = ()
        return held

    def _wake(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if request.status is Status.WAITING:
                self._queue.push(request)
