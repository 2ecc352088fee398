# SPDX-License-Identifier: Apache-2.0
"""Members of a topic, as the conformance tests play them."""

from __future__ import annotations

import time
from collections.abc import Callable

from fdspec.scheduler.broker.interface import Broker
from fdspec.scheduler.broker.values import (
    Emission,
    EmitOutcome,
    Lease,
    LeaseRef,
    LeaseState,
    Result,
    Submission,
    SubmitOutcome,
    WorkerCard,
)
from tests.scheduler.topic_conformance.services import Service

DEADLINE_S = 30.0
QUICK_S = 0.15
"""Lease of members that fall silent; those who must not have 30 s."""


class Topic:
    """A topic of one service, and the connections to it."""

    def __init__(self, service: Service, name: str) -> None:
        self.service = service
        self.name = name
        self._open: list[Broker] = []

    def connect(self, lease_s: float = 30.0) -> Broker:
        self._open.append(self.service.connect(self.name, lease_s))
        return self._open[-1]

    def worker(self, name: str = "w", lease_s: float = 30.0, **card: object) -> Worker:
        return Worker(self.connect(lease_s), name, **card)

    def frontend(self, name: str = "f", lease_s: float = 30.0) -> Frontend:
        return Frontend(self.connect(lease_s), name)

    def close(self) -> None:
        for broker in self._open:
            broker.close()


class Worker:
    def __init__(self, broker: Broker, name: str, **card: object) -> None:
        self.broker = broker
        self.card = WorkerCard(name, **card)  # type: ignore[arg-type]

    def lease(self, num_slots: int = 1, wait_s: float = 0.0) -> list[Lease]:
        return self.broker.lease(self.card, num_slots, wait_s)

    def one(self) -> Lease:
        """The next request, which must be there or come."""
        return eventually(lambda: self.lease(), bool)[0]

    def renew(self, *refs: LeaseRef) -> list[LeaseState]:
        return self.broker.renew(self.card, refs)

    def emit(
        self,
        ref: LeaseRef,
        index: int,
        *tokens: int,
        last: bool = False,
        choice: int = 0,
        offer: bytes = b"",
    ) -> EmitOutcome:
        payload = f"{choice}:{index}:{tokens}".encode()
        (outcome,) = self.broker.emit([Emission(ref, choice, index, tokens, last, payload, offer)])
        return outcome


class Frontend:
    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.cursor = ""
        assert self.collect_all().is_new

    def submit(self, request_id: str, **changes: object) -> SubmitOutcome:
        payload = f"payload of {request_id}".encode()
        return self.broker.submit(Submission(request_id, self.name, payload, **changes))  # type: ignore[arg-type]

    def collect_all(self, wait_s: float = 0.0):
        collected = self.broker.collect(self.name, self.cursor, wait_s)
        self.cursor = collected.cursor
        return collected

    def collect(self, wait_s: float = 0.0) -> tuple[Result, ...]:
        return self.collect_all(wait_s).results


def eventually(act: Callable[[], object], is_enough: Callable[[object], bool]):
    """Repeat until the answer is enough; a deadline only stops a broken test."""
    end_s = time.monotonic() + DEADLINE_S
    while not is_enough(answer := act()):
        assert time.monotonic() < end_s, f"waited too long; last answer: {answer}"
        time.sleep(0.02)
    return answer
