# SPDX-License-Identifier: Apache-2.0
"""WaitingQueue: which of the waiting requests is served next.

Knows requests by their order of service only; whether one can run is decided by `Residents`.
"""

from __future__ import annotations

import heapq
import itertools

from fdspec.core import Request, SequenceId

AGEING_INTERVAL = 16
"""Every so many admissions go to the request that came first, whatever its priority."""

Order = tuple[int, int, int]
_Entry = tuple[Order, int, Request]


def service_order(request: Request) -> Order:
    """Smaller is served first, and loses its blocks last."""
    return request.priority, request.turn, request.arrival


class FairShares:
    """Turns of users: each gets an equal share of the tokens, whoever asks for more.

    Start-time fair queueing (Goyal, Vin, Cheng 1996): a request's turn is the time at which its
    user's requests before it would end if the user were alone, but not before now; now is the turn
    of the request that was admitted last. Times are tokens, prompt and largest output together.
    """

    def __init__(self) -> None:
        self._now = 0
        self._ends: dict[str, int] = {}

    def take_turn(self, user: str, num_tokens: int) -> int:
        """The turn of a user's next request."""
        turn = max(self._now, self._ends.get(user, 0))
        self._ends[user] = turn + num_tokens
        return turn

    def served(self, turn: int) -> None:
        """A request of that turn was admitted; users who are not ahead of it are forgotten."""
        if turn > self._now:
            self._now = turn
            self._ends = {user: end for user, end in self._ends.items() if end > turn}


class WaitingQueue:
    """Requests that wait, in order of service.

    Within a priority the order is that of arrival, or of fair shares. Every AGEING_INTERVAL-th
    admission goes to the request that arrived first, which then has the priority of whom it
    overtook: so each request is admitted some time, and is not preempted for those who came later.
    """

    def __init__(self) -> None:
        self._by_order: list[_Entry] = []
        self._by_arrival: list[_Entry] = []
        # An entry counts as long as its ticket is its request's.
        self._tickets: dict[SequenceId, int] = {}
        self._next_ticket = itertools.count()
        self._num_admitted = 0

    def push(self, request: Request) -> None:
        """Let a request wait; it must not be in the queue."""
        assert request.sequence_id not in self._tickets
        ticket = next(self._next_ticket)
        self._tickets[request.sequence_id] = ticket
        heapq.heappush(self._by_order, (service_order(request), ticket, request))
        heapq.heappush(self._by_arrival, ((0, 0, request.arrival), ticket, request))

    def first(self) -> Request | None:
        """Who is served next, None if nobody waits."""
        self._drop_stale(self._by_order)
        self._drop_stale(self._by_arrival)
        if not self._by_order:
            return None
        is_oldest_due = (self._num_admitted + 1) % AGEING_INTERVAL == 0
        return (self._by_arrival if is_oldest_due else self._by_order)[0][2]

    def admit(self, request: Request) -> None:
        """Take out what `first` gave, because it runs now."""
        self._num_admitted += 1
        request.priority = min(request.priority, self._by_order[0][2].priority)
        self.remove(request)

    def remove(self, request: Request) -> None:
        """Take a request out, if it is in the queue."""
        self._tickets.pop(request.sequence_id, None)

    def requests(self) -> list[Request]:
        """All that wait, in no order. Does not modify."""
        return [entry[2] for entry in self._by_order if self._is_valid(entry)]

    def _drop_stale(self, heap: list[_Entry]) -> None:
        while heap and not self._is_valid(heap[0]):
            heapq.heappop(heap)

    def _is_valid(self, entry: _Entry) -> bool:
        return self._tickets.get(entry[2].sequence_id) == entry[1]
