# SPDX-License-Identifier: Apache-2.0
"""What frontends, workers and the broker of a topic say to each other. Frozen and plain.

A *request* waits in a *queue* until a *worker* leases it; the worker's *emissions* go to the
*frontend* that submitted it. Where prefill and decode are apart, a worker that has computed the
prompt emits the first tokens with *offers* of its KV cache, and the request waits in the queue
`decode` then. The broker looks into no payload and no offer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Role = Literal["mixed", "prefill", "decode"]
ROLES: tuple[Role, ...] = ("mixed", "prefill", "decode")
Queue = Literal["prefill", "decode"]
QUEUES: tuple[Queue, ...] = ("prefill", "decode")
"""What a request waits for: that somebody computes its prompt, or that it goes on after that.

Workers of the role `mixed` serve `prefill`, and `decode` too while no decode worker is alive.
"""
MAX_DELIVERIES = 3
"""So many leases in a row may end without a new token; then the request is given up."""
MEMORY_S = 60.0
"""So long the broker knows a request's id after its end, and unread results after their arrival."""

Progress = tuple[int, ...] | None
"""Output tokens of a choice so far; None if the choice has ended."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long somebody may be silent. Each member of the topic brings its own.

    Attributes:
        lease_s: a worker that has not renewed a request for so long loses it, and a frontend that
            has not collected for so long loses all of its requests.
    """

    lease_s: float = 15.0

    @property
    def worker_timeout_s(self) -> float:
        """A worker that is silent for so long is taken for dead: all of its requests go on."""
        return self.lease_s / 3

    @property
    def renew_interval_s(self) -> float:
        """Time between two renewals of a worker, and between two signs of life of a frontend."""
        return self.lease_s / 15


@dataclass(frozen=True, slots=True)
class Submission:
    """One request on its way to a worker.

    Attributes:
        request_id: any text; the key under which repetitions are recognised.
        frontend: id of the frontend that collects the results.
        payload: the request for the worker.
        num_choices: how many sequences it has, at least 1.
        attempt: 0 first. A higher one replaces what the broker has of the request: the frontend
            says that it has seen `emitted` and nothing else.
        decode_below: while none of its open choices has so many output tokens, the request is short
            enough for decode workers to compute its prompt themselves; 0: it never is.
        priority: smaller is leased first; ties by arrival. 32 bits.
        ttl_s: time from now until it is given up, by the broker's clock.
        max_waiting: refused if so many requests wait in the queue; 0 is no limit.
        needs_worker: refused if the workers that are alive cannot bring it to its end.
        emitted: what the frontend has of each choice; empty is nothing.
    """

    request_id: str
    frontend: str
    payload: bytes
    num_choices: int = 1
    attempt: int = 0
    decode_below: int = 0
    priority: int = 0
    ttl_s: float = 900.0
    max_waiting: int = 0
    needs_worker: bool = False
    emitted: tuple[Progress, ...] = ()


class SubmitOutcome(Enum):
    """What became of a submission; only QUEUED changed anything."""

    QUEUED = "queued"
    DUPLICATE = "duplicate"
    BUSY = "busy"
    NO_WORKER = "no_worker"


@dataclass(frozen=True, slots=True)
class LeaseRef:
    """Names one lease: whoever knows its epoch holds it.

    Attributes:
        request_id: the request.
        epoch: random, new for each delivery.
    """

    request_id: str
    epoch: str


@dataclass(frozen=True, slots=True)
class Lease:
    """A request in a worker's hands.

    Attributes:
        ref: its name, for everything that follows.
        payload: of the submission.
        emitted: what each choice has yielded elsewhere; the worker goes on from there.
        delivery: 1 for the first lease since the last new token.
        offers: of each choice that was handed over; empty bytes for one that was not. Whoever
            leases the request next does not get them again.
    """

    ref: LeaseRef
    payload: bytes
    emitted: tuple[Progress, ...]
    delivery: int
    offers: tuple[bytes, ...] = ()


class LeaseState(Enum):
    """What a worker hears of a lease. With LOST and CANCELLED the request is no longer its own."""

    HELD = "held"
    LOST = "lost"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Emission:
    """New tokens of one choice, or its end, or both.

    Attributes:
        ref: the lease under which they were made.
        choice: 0 .. num_choices - 1.
        index: output index of tokens[0].
        tokens: may be empty at the end.
        is_last: True if the choice ends.
        payload: for the frontend; empty if there is nothing to tell it.
        offer: what whoever decodes this choice needs; empty if the worker goes on with it. When
            every choice that has not ended has an offer, the lease ends and the request waits in
            the queue `decode`.
    """

    ref: LeaseRef
    choice: int
    index: int
    tokens: tuple[int, ...]
    is_last: bool
    payload: bytes
    offer: bytes = b""


class EmitOutcome(Enum):
    """What became of an emission; only ACCEPTED ones reach the frontend.

    DUPLICATE was accepted before. After FENCED and CANCELLED the request is no longer the worker's.
    """

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    FENCED = "fenced"
    CANCELLED = "cancelled"


class FailureCode(Enum):
    """Why the broker gave a request up."""

    EXPIRED = "expired"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class Result:
    """One entry of a frontend's result stream: an emission's payload, or the request's failure.

    Attributes:
        request_id: the request.
        attempt: of the submission that it belongs to.
        payload: of an emission; None for a failure.
        failure: why no more will come; None for an emission.
    """

    request_id: str
    attempt: int
    payload: bytes | None = None
    failure: FailureCode | None = None


@dataclass(frozen=True, slots=True)
class Collected:
    """What a frontend finds in its result stream.

    Attributes:
        results: in order.
        cursor: for the next call, which also says that everything up to here has been read.
        is_new: True if the broker did not know the frontend: it holds none of its requests but
            those submitted since.
    """

    results: tuple[Result, ...]
    cursor: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class WorkerCard:
    """What a worker says of itself whenever it speaks.

    Attributes:
        worker_id: new for each start.
        role: what it computes, and so which queues it serves.
        name: host and process, for people.
        num_slots: sequences that it can compute at once.
        num_running: sequences that hold blocks.
        num_waiting: sequences that wait for blocks.
        num_blocks: KV blocks of its pool.
        num_free_blocks: of those, how many can be given out.
        details: what it serves, for frontends; opaque here.
        endpoints: ways to its KV cache, for people.
    """

    worker_id: str
    role: Role = "mixed"
    name: str = ""
    num_slots: int = 1
    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    details: bytes = b""
    endpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A living worker, as the broker sees it.

    Attributes:
        card: what it said last.
        num_leased: requests that it holds.
    """

    card: WorkerCard
    num_leased: int


@dataclass(frozen=True, slots=True)
class TopicStats:
    """The topic now.

    Attributes:
        num_waiting: requests in each queue of QUEUES.
        num_leased: requests in workers' hands.
        num_frontends: frontends that collect.
        num_dead_letters: requests given up after MAX_DELIVERIES, as far as they are remembered.
        workers: the living ones, by id.
    """

    num_waiting: tuple[int, ...]
    num_leased: int
    num_frontends: int
    num_dead_letters: int
    workers: tuple[WorkerState, ...]

    def missing_roles(self) -> tuple[Role, ...]:
        """Roles of which one more worker would have to live for requests to come to an end."""
        alive = {worker.card.role for worker in self.workers}
        if "mixed" in alive:
            return ()
        if not alive:
            return ("mixed",)
        return tuple(role for role in ("prefill", "decode") if role not in alive)
