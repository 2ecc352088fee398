# SPDX-License-Identifier: Apache-2.0
"""QueueEntry: all that a broker in Python knows of one request. Only `TopicBook` changes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fdspec.scheduler.broker.values import Progress, Queue, Submission


@dataclass(slots=True)
class QueueEntry:
    """One request, waiting or leased.

    Attributes:
        submission: as it came.
        arrival: counter; a request that is given back keeps its place.
        deadline_s: when it expires.
        tokens: output so far of each choice.
        ended: which choices have ended.
        offers: of choices that the worker, or the one before, has handed over.
        queue: where it waits; of one that is leased, where it waited.
        epoch: of its lease; None while it waits.
        worker: who holds it.
        lease_until_s: when the lease ends.
        num_deliveries: leases since the last new token.
        is_cancelled: True if the worker has yet to hear that nobody wants it.
    """

    submission: Submission
    arrival: int
    deadline_s: float
    tokens: list[list[int]] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    offers: dict[int, bytes] = field(default_factory=dict)
    queue: Queue = "prefill"
    epoch: str | None = None
    worker: str = ""
    lease_until_s: float = 0.0
    num_deliveries: int = 0
    is_cancelled: bool = False

    def __post_init__(self) -> None:
        given = self.submission.emitted or ((),) * self.submission.num_choices
        self.tokens = [list(tokens or ()) for tokens in given]
        self.ended = [tokens is None for tokens in given]
        self.queue = self.start_queue

    @property
    def start_queue(self) -> Queue:
        """Where it waits if nobody has its KV cache."""
        open_choices = zip(self.tokens, self.ended, strict=True)
        most = max((len(tokens) for tokens, ended in open_choices if not ended), default=0)
        return "decode" if most < self.submission.decode_below else "prefill"

    @property
    def is_handed_over(self) -> bool:
        """True if every choice that has not ended has an offer."""
        return all(choice in self.offers for choice, ended in enumerate(self.ended) if not ended)

    @property
    def place(self) -> tuple[int, int, str]:
        """Sorts the queue: priority, arrival, then the id."""
        return self.submission.priority, self.arrival, self.submission.request_id

    @property
    def progress(self) -> tuple[Progress, ...]:
        """How far each choice has come."""
        return tuple(
            None if ended else tuple(tokens)
            for tokens, ended in zip(self.tokens, self.ended, strict=True)
        )
