# SPDX-License-Identifier: Apache-2.0
"""Broker: the contract of a scheduler topic, eight verbs and the reading of results.

`tests/scheduler/topic_conformance` are its specification; every back end passes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fdspec.core import FdspecError
from fdspec.scheduler.broker.values import (
    Collected,
    Emission,
    EmitOutcome,
    Lease,
    LeaseRef,
    LeaseState,
    Submission,
    SubmitOutcome,
    TopicStats,
    WorkerCard,
)

MAX_PAYLOAD_BYTES = 16 * 2**20
MAX_WAIT_S = 2.0
"""Longest wait inside one call."""


class BrokerError(FdspecError):
    """A call did not get through; base of the others."""


class BrokerUnavailable(BrokerError):
    """Nobody answers, now; the same call may be made again."""


class BrokerRefused(BrokerError):
    """The broker will not serve us as we are: wrong password, key, or version."""


class PayloadTooLarge(BrokerError):
    """A payload has more than MAX_PAYLOAD_BYTES; nothing was sent."""


class Broker(Protocol):
    """One member's connection to a topic. Used by one thread at a time; may block up to wait_s.

    Everything may be repeated when it is unknown whether it got through: submissions are recognised
    by id and attempt, emissions by choice and index, and a lease that nobody heard of runs out.

    Every call raises BrokerUnavailable or BrokerRefused if it cannot get through.
    """

    def submit(self, submission: Submission) -> SubmitOutcome:
        """Queue a request.

        Raises:
            PayloadTooLarge: nothing was sent.
        """
        ...

    def lease(self, worker: WorkerCard, num_slots: int, wait_s: float = 0.0) -> list[Lease]:
        """Take requests of the worker's role, by priority and arrival, for num_slots sequences.

        One request may have more choices than there are slots. Waits up to wait_s (at most
        MAX_WAIT_S) if there is none. Also a sign of life.
        """
        ...

    def renew(self, worker: WorkerCard, leases: Sequence[LeaseRef]) -> list[LeaseState]:
        """Keep leases for another lease_s; one state for each. Also a sign of life."""
        ...

    def emit(self, emissions: Sequence[Emission]) -> list[EmitOutcome]:
        """Hand tokens over; one outcome for each.

        Raises:
            PayloadTooLarge: nothing was sent.
        """
        ...

    def nack(self, leases: Sequence[LeaseRef], *, is_fault: bool = False) -> None:
        """Give requests back; others go on with them at once. Unknown leases are ignored.

        Args:
            leases: what is given back.
            is_fault: True if the request may be to blame, which counts as a delivery without a
                token; False if the worker only ends.
        """
        ...

    def leave(self, worker: WorkerCard) -> None:
        """The worker ends: it is not alive any more. What it still holds is given back."""
        ...

    def cancel(self, request_id: str) -> None:
        """Nobody wants it any more. Its worker hears of it with its next renewal or emission."""
        ...

    def stats(self) -> TopicStats:
        """The topic now."""
        ...

    def collect(self, frontend: str, cursor: str, wait_s: float = 0.0) -> Collected:
        """Read a frontend's results behind `cursor` ("" at first), and say that it lives.

        Waits up to wait_s (at most MAX_WAIT_S) if there is none. When a frontend is silent for
        lease_s, its requests are cancelled and its results dropped.
        """
        ...

    def close(self) -> None:
        """Free the connection. Idempotent."""
        ...


def check_payload(payload: bytes) -> None:
    """Raise PayloadTooLarge if a payload is."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(
            f"a message of {len(payload)} bytes is over the limit of {MAX_PAYLOAD_BYTES} bytes"
        )
