# SPDX-License-Identifier: Apache-2.0
"""A broker inside one process: a `TopicBook` behind a lock. The reference of the conformance suite.

Members in several threads share one `InProcessTopicServer`; each opens its own `InProcessBroker`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from fdspec.scheduler.broker.book import TopicBook
from fdspec.scheduler.broker.interface import MAX_WAIT_S, BrokerUnavailable, check_payload
from fdspec.scheduler.broker.values import (
    Collected,
    Emission,
    EmitOutcome,
    Lease,
    LeaseRef,
    LeaseState,
    Submission,
    SubmitOutcome,
    Timing,
    TopicStats,
    WorkerCard,
)

Answer = TypeVar("Answer")


class InProcessTopicServer:
    """The topics of one process; stands where a Redis server or a ZMQ broker would."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._books: dict[str, TopicBook] = {}
        self._is_up = True

    def book(self, topic: str) -> TopicBook:
        """The book of a topic; call it with `changed` held.

        Raises:
            BrokerUnavailable: the server is stopped.
        """
        if not self._is_up:
            raise BrokerUnavailable("the in-process broker is stopped")
        return self._books.setdefault(topic, TopicBook())

    def stop(self) -> None:
        """Answer nobody any more."""
        with self.changed:
            self._is_up = False
            self.changed.notify_all()

    def start(self, *, keep_data: bool) -> None:
        """Answer again, with or without what was known before."""
        with self.changed:
            self._is_up = True
            if not keep_data:
                self._books.clear()


class InProcessBroker:
    """One member's connection; implements `Broker`."""

    def __init__(self, server: InProcessTopicServer, topic: str, timing: Timing) -> None:
        self._server = server
        self._topic = topic
        self._timing = timing

    def submit(self, submission: Submission) -> SubmitOutcome:
        """See `Broker.submit`."""
        check_payload(submission.payload)
        return self._call(lambda book, now_s: book.submit(submission, now_s))

    def lease(self, worker: WorkerCard, num_slots: int, wait_s: float = 0.0) -> list[Lease]:
        """See `Broker.lease`."""
        return self._wait_for(
            lambda book, now_s: book.lease(worker, num_slots, self._timing, now_s), bool, wait_s
        )

    def renew(self, worker: WorkerCard, leases: Sequence[LeaseRef]) -> list[LeaseState]:
        """See `Broker.renew`."""
        return self._call(lambda book, now_s: book.renew(worker, leases, self._timing, now_s))

    def emit(self, emissions: Sequence[Emission]) -> list[EmitOutcome]:
        """See `Broker.emit`."""
        for emission in emissions:
            check_payload(emission.payload)
            check_payload(emission.offer)
        return self._call(lambda book, now_s: book.emit(emissions, now_s))

    def nack(self, leases: Sequence[LeaseRef], *, is_fault: bool = False) -> None:
        """See `Broker.nack`."""
        self._call(lambda book, now_s: book.nack(leases, is_fault, now_s))

    def leave(self, worker: WorkerCard) -> None:
        """See `Broker.leave`."""
        self._call(lambda book, now_s: book.leave(worker, now_s))

    def cancel(self, request_id: str) -> None:
        """See `Broker.cancel`."""
        self._call(lambda book, now_s: book.cancel(request_id, now_s))

    def stats(self) -> TopicStats:
        """See `Broker.stats`."""
        return self._call(lambda book, now_s: book.stats(now_s))

    def collect(self, frontend: str, cursor: str, wait_s: float = 0.0) -> Collected:
        """See `Broker.collect`."""
        return self._wait_for(
            lambda book, now_s: book.collect(frontend, cursor, self._timing, now_s),
            lambda collected: bool(collected.results) or collected.is_new,
            wait_s,
        )

    def close(self) -> None:
        """Nothing to free."""

    def _call(self, act: Callable[[TopicBook, float], Answer]) -> Answer:
        with self._server.changed:
            answer = act(self._server.book(self._topic), time.monotonic())
            self._server.changed.notify_all()
            return answer

    def _wait_for(
        self,
        act: Callable[[TopicBook, float], Answer],
        is_enough: Callable[[Answer], bool],
        wait_s: float,
    ) -> Answer:
        end_s = time.monotonic() + min(wait_s, MAX_WAIT_S)
        with self._server.changed:
            while True:
                now_s = time.monotonic()
                answer = act(self._server.book(self._topic), now_s)
                if is_enough(answer) or now_s >= end_s:
                    self._server.changed.notify_all()
                    return answer
                self._server.changed.wait(end_s - now_s)
