# SPDX-License-Identifier: Apache-2.0
"""WaitingQueue: which of the waiting requests is served next.

Knows requests by their order of service only; whether one can run is decided by `Residents`.
"""

from __future__ import annotations

import heapq

from fdspec.core import Request, Status


def service_order(request: Request) -> tuple[int, int]:
    """Smaller is served first."""
    return request.priority, request.arrival


class WaitingQueue:
    """Requests that wait, in order of service; those that ended meanwhile are passed over."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []

    def push(self, request: Request) -> None:
        """Let a request wait; it must not be in the queue."""
        heapq.heappush(self._heap, (*service_order(request), request))

    def first(self) -> Request | None:
        """Who is served next, None if nobody waits."""
        while self._heap and self._heap[0][2].status is not Status.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> None:
        """Take out what `first` gave."""
        heapq.heappop(self._heap)

    def requests(self) -> list[Request]:
        """All that wait, in no order. Does not modify."""
        return [request for *_, request in self._heap if request.status is Status.WAITING]
