# SPDX-License-Identifier: Apache-2.0
"""TopicBook: the rules of a topic, in Python; what lua/*.lua are for a Redis server.

Knows no clock, thread or transport: every call is told what time it is, and answers at once. Used
by `in_process.py` and `zmq_server.py`.
"""

from __future__ import annotations

import heapq
import secrets
from bisect import insort
from collections import deque
from collections.abc import Sequence

from fdspec.scheduler.broker.queue_entry import QueueEntry
from fdspec.scheduler.broker.values import (
    MAX_DELIVERIES,
    MEMORY_S,
    QUEUES,
    Collected,
    Emission,
    EmitOutcome,
    FailureCode,
    Lease,
    LeaseRef,
    LeaseState,
    Queue,
    Result,
    Submission,
    SubmitOutcome,
    Timing,
    TopicStats,
    WorkerCard,
    WorkerState,
)


class TopicBook:
    """The state of one topic. Times are seconds of any clock that never goes back."""

    def __init__(self) -> None:
        self._entries: dict[str, QueueEntry] = {}
        self._queues: dict[Queue, list[tuple[int, int, str]]] = {queue: [] for queue in QUEUES}
        self._num_arrivals = 0
        # Ended requests by id: attempt, and when to forget it.
        self._ended: dict[str, tuple[int, float]] = {}
        self._workers: dict[str, tuple[WorkerCard, float]] = {}
        self._frontends: dict[str, float] = {}
        self._results: dict[str, deque[tuple[int, Result]]] = {}
        self._num_results = 0
        self._num_dead_letters = 0
        # When a request must be looked at, at the latest; an entry for its deadline and its lease.
        self._due: list[tuple[float, str]] = []

    # -- the verbs --------------------------------------------------------------------------------

    def submit(self, submission: Submission, now_s: float) -> SubmitOutcome:
        """See `Broker.submit`."""
        self.sweep(now_s)
        request_id = submission.request_id
        known = self._entries.get(request_id)
        last = known.submission.attempt if known else self._ended.get(request_id, (-1, 0.0))[0]
        if submission.attempt <= last:
            return SubmitOutcome.DUPLICATE
        entry = QueueEntry(submission, self._num_arrivals + 1, now_s + submission.ttl_s)
        queue = self._queues[entry.queue]
        if submission.needs_worker and not self._can_serve(entry):
            return SubmitOutcome.NO_WORKER
        # A request that goes on was let in before.
        if submission.attempt == 0 and 0 < submission.max_waiting <= len(queue):
            return SubmitOutcome.BUSY
        if known is not None:
            self._remove(known)
        self._num_arrivals += 1
        self._entries[request_id] = entry
        self._look_at(request_id, entry.deadline_s)
        insort(queue, entry.place)
        return SubmitOutcome.QUEUED

    def lease(
        self, worker: WorkerCard, num_slots: int, timing: Timing, now_s: float
    ) -> list[Lease]:
        """See `Broker.lease`."""
        self._meet(worker, timing, now_s)
        self.sweep(now_s)
        leases: list[Lease] = []
        while num_slots > 0 and (queue := self._next_queue(worker)):
            entry = self._entries[queue.pop(0)[2]]
            entry.epoch = secrets.token_hex(16)
            entry.worker = worker.worker_id
            entry.lease_until_s = now_s + timing.lease_s
            entry.num_deliveries += 1
            self._look_at(entry.submission.request_id, entry.lease_until_s)
            ref = LeaseRef(entry.submission.request_id, entry.epoch)
            payload = entry.submission.payload
            offers = tuple(entry.offers.get(choice, b"") for choice in range(len(entry.ended)))
            entry.offers = {}
            leases.append(Lease(ref, payload, entry.progress, entry.num_deliveries, offers))
            num_slots -= entry.ended.count(False)
        return leases

    def renew(
        self, worker: WorkerCard, leases: Sequence[LeaseRef], timing: Timing, now_s: float
    ) -> list[LeaseState]:
        """See `Broker.renew`."""
        self._meet(worker, timing, now_s)
        self.sweep(now_s)
        states = []
        for ref in leases:
            entry = self._held(ref)
            if entry is None:
                states.append(LeaseState.LOST)
            elif entry.is_cancelled:
                self._end(entry, now_s)
                states.append(LeaseState.CANCELLED)
            else:
                entry.lease_until_s = now_s + timing.lease_s
                states.append(LeaseState.HELD)
        return states

    def emit(self, emissions: Sequence[Emission], now_s: float) -> list[EmitOutcome]:
        """See `Broker.emit`."""
        self.sweep(now_s)
        return [self._take(emission, now_s) for emission in emissions]

    def nack(self, leases: Sequence[LeaseRef], is_fault: bool, now_s: float) -> None:
        """See `Broker.nack`."""
        self.sweep(now_s)
        for ref in leases:
            entry = self._held(ref)
            if entry is not None:
                self._give_back(entry, is_fault, now_s)

    def leave(self, worker: WorkerCard, now_s: float) -> None:
        """See `Broker.leave`."""
        self.sweep(now_s)
        self._dismiss(worker.worker_id, False, now_s)

    def cancel(self, request_id: str, now_s: float) -> None:
        """See `Broker.cancel`."""
        self.sweep(now_s)
        entry = self._entries.get(request_id)
        if entry is not None:
            self._cancel(entry, now_s)

    def stats(self, now_s: float) -> TopicStats:
        """See `Broker.stats`."""
        self.sweep(now_s)
        holders = [entry.worker for entry in self._entries.values() if entry.epoch is not None]
        workers = (
            WorkerState(card, holders.count(worker_id))
            for worker_id, (card, _) in sorted(self._workers.items())
        )
        return TopicStats(
            tuple(len(self._queues[queue]) for queue in QUEUES),
            len(holders),
            len(self._frontends),
            self._num_dead_letters,
            tuple(workers),
        )

    def collect(self, frontend: str, cursor: str, timing: Timing, now_s: float) -> Collected:
        """See `Broker.collect`."""
        self.sweep(now_s)
        is_new = frontend not in self._frontends
        self._frontends[frontend] = now_s + timing.lease_s
        last = int(cursor) if cursor and not is_new else 0
        stream = self._results.setdefault(frontend, deque())
        while stream and stream[0][0] <= last:
            stream.popleft()
        last = stream[-1][0] if stream else last
        return Collected(tuple(result for _, result in stream), str(last), is_new)

    def sweep(self, now_s: float) -> None:
        """Do what has come due: silent workers and frontends, ended leases, deadlines."""
        for worker_id, (_, until_s) in list(self._workers.items()):
            if until_s <= now_s:
                self._dismiss(worker_id, True, now_s)
        while self._due and self._due[0][0] <= now_s:
            self._check_due(heapq.heappop(self._due)[1], now_s)
        for frontend, until_s in list(self._frontends.items()):
            if until_s <= now_s:
                del self._frontends[frontend]
                self._results.pop(frontend, None)
                for entry in list(self._entries.values()):
                    if entry.submission.frontend == frontend:
                        self._cancel(entry, now_s)

    # -- parts ------------------------------------------------------------------------------------

    def _meet(self, worker: WorkerCard, timing: Timing, now_s: float) -> None:
        self._workers[worker.worker_id] = (worker, now_s + timing.worker_timeout_s)

    def _dismiss(self, worker_id: str, is_fault: bool, now_s: float) -> None:
        """A worker is not alive any more: its requests go on elsewhere."""
        self._workers.pop(worker_id, None)
        for entry in [e for e in self._entries.values() if e.worker == worker_id]:
            if entry.epoch is not None:
                self._give_back(entry, is_fault, now_s)

    def _can_serve(self, entry: QueueEntry) -> bool:
        alive = {card.role for card, _ in self._workers.values()}
        needed = {"decode"} if entry.queue == "decode" else {"prefill", "decode"}
        return "mixed" in alive or needed <= alive

    def _next_queue(self, worker: WorkerCard) -> list[tuple[int, int, str]]:
        """A queue from which a worker may take something; empty if there is none."""
        queues: tuple[Queue, ...] = ("decode",) if worker.role == "decode" else ("prefill",)
        if worker.role == "mixed":
            has_decoder = any(card.role == "decode" for card, _ in self._workers.values())
            queues = ("prefill",) if has_decoder else ("decode", "prefill")
        return next((self._queues[queue] for queue in queues if self._queues[queue]), [])

    def _held(self, ref: LeaseRef) -> QueueEntry | None:
        entry = self._entries.get(ref.request_id)
        return entry if entry is not None and entry.epoch == ref.epoch else None

    def _take(self, emission: Emission, now_s: float) -> EmitOutcome:
        entry = self._held(emission.ref)
        if entry is None:
            return EmitOutcome.FENCED
        if entry.is_cancelled:
            self._end(entry, now_s)
            return EmitOutcome.CANCELLED
        tokens = entry.tokens[emission.choice]
        is_old = emission.index + len(emission.tokens) <= len(tokens)
        has_more = emission.is_last or bool(emission.offer)
        if entry.ended[emission.choice] or (is_old and not has_more):
            return EmitOutcome.DUPLICATE
        if emission.index != len(tokens):
            # The broker has lost tokens that this worker emitted: another one starts from here.
            self._give_back(entry, False, now_s)
            return EmitOutcome.FENCED
        tokens += emission.tokens
        entry.ended[emission.choice] = emission.is_last
        if emission.tokens or emission.is_last:
            entry.num_deliveries = 0
        if emission.offer:
            entry.offers[emission.choice] = emission.offer
        if emission.payload:
            attempt = entry.submission.attempt
            self._post(entry, Result(emission.ref.request_id, attempt, emission.payload))
        if all(entry.ended):
            self._end(entry, now_s)
        elif entry.is_handed_over:
            if not emission.tokens and not emission.is_last:
                entry.num_deliveries = max(entry.num_deliveries - 1, 0)
            self._wait_in(entry, "decode")
        return EmitOutcome.ACCEPTED

    def _give_back(self, entry: QueueEntry, is_fault: bool, now_s: float) -> None:
        if entry.is_cancelled:
            self._end(entry, now_s)
        elif is_fault and entry.num_deliveries >= MAX_DELIVERIES:
            self._num_dead_letters += 1
            self._fail(entry, FailureCode.DEAD_LETTER, now_s)
        else:
            if not is_fault:
                entry.num_deliveries = max(entry.num_deliveries - 1, 0)
            # What some choices were handed over for is worth nothing without the others.
            entry.offers = {}
            self._wait_in(entry, entry.start_queue)

    def _wait_in(self, entry: QueueEntry, queue: Queue) -> None:
        """End the lease of a request, and let it wait for another one."""
        entry.epoch, entry.worker, entry.queue = None, "", queue
        insort(self._queues[queue], entry.place)

    def _cancel(self, entry: QueueEntry, now_s: float) -> None:
        entry.is_cancelled = True
        if entry.epoch is None:
            self._end(entry, now_s)

    def _check_due(self, request_id: str, now_s: float) -> None:
        entry = self._entries.get(request_id)
        if entry is None:
            return
        if entry.deadline_s <= now_s:
            self._fail(entry, FailureCode.EXPIRED, now_s)
        elif entry.epoch is not None:
            if entry.lease_until_s <= now_s:
                self._give_back(entry, True, now_s)
            else:
                self._look_at(request_id, entry.lease_until_s)

    def _look_at(self, request_id: str, when_s: float) -> None:
        heapq.heappush(self._due, (when_s, request_id))

    def _fail(self, entry: QueueEntry, code: FailureCode, now_s: float) -> None:
        submission = entry.submission
        self._post(entry, Result(submission.request_id, submission.attempt, failure=code))
        self._end(entry, now_s)

    def _post(self, entry: QueueEntry, result: Result) -> None:
        self._num_results += 1
        stream = self._results.setdefault(entry.submission.frontend, deque())
        stream.append((self._num_results, result))

    def _end(self, entry: QueueEntry, now_s: float) -> None:
        """Keep nothing of a request but that it was there."""
        self._remove(entry)
        while self._ended and next(iter(self._ended.values()))[1] <= now_s:
            del self._ended[next(iter(self._ended))]
        submission = entry.submission
        self._ended[submission.request_id] = (submission.attempt, now_s + MEMORY_S)

    def _remove(self, entry: QueueEntry) -> None:
        del self._entries[entry.submission.request_id]
        if entry.epoch is None:
            self._queues[entry.queue].remove(entry.place)
        entry.epoch = None
