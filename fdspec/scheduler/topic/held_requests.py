# SPDX-License-Identifier: Apache-2.0
"""HeldRequests: the leases of one worker, and how many more it may take. Thread-safe.

Inside its engine a request goes by the epoch of its lease, so that events of a lease that was lost
are never taken for those of a later one. Used by `broker_worker.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from fdspec.core import TokenEvent
from fdspec.scheduler.broker.values import Lease, LeaseRef


@dataclass(slots=True)
class _Held:
    """One lease.

    Attributes:
        ref: its name.
        open_choices: have not had their last event from the engine.
        undelivered: of these and others, the broker has not had it.
    """

    ref: LeaseRef
    open_choices: set[int] = field(default_factory=set)
    undelivered: set[int] = field(default_factory=set)


class HeldRequests:
    """Leases by epoch.

    Args:
        num_slots: sequences that the worker computes at once.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()

    def add(self, lease: Lease) -> None:
        """Take a lease."""
        choices = {number for number, tokens in enumerate(lease.emitted) if tokens is not None}
        with self._lock:
            self._held[lease.ref.epoch] = _Held(lease.ref, choices, set(choices))

    def note_ends(self, events: Iterable[TokenEvent]) -> bool:
        """The engine has ended some choices, whose slots are free now; True if there are any."""
        freed = False
        with self._lock:
            for event in events:
                if event.finish is not None and event.request_id in self._held:
                    self._held[event.request_id].open_choices.discard(event.choice)
                    freed = True
        return freed

    def remove(self, epoch: str) -> bool:
        """Forget a lease; False if it was not there."""
        with self._lock:
            return self._held.pop(epoch, None) is not None

    def get(self, epoch: str) -> LeaseRef | None:
        """The lease of that epoch. Does not modify."""
        with self._lock:
            held = self._held.get(epoch)
            return None if held is None else held.ref

    def refs(self) -> list[LeaseRef]:
        """All leases. Does not modify."""
        with self._lock:
            return [held.ref for held in self._held.values()]

    def note_delivery(self, epoch: str, choice: int) -> None:
        """The broker has had the last event of a choice; the last choice's ends the lease."""
        with self._lock:
            held = self._held.get(epoch)
            if held is not None:
                held.undelivered.discard(choice)
                if not held.undelivered:
                    del self._held[epoch]

    def num_free_slots(self) -> int:
        """Sequences that may be leased beside those that run. Does not modify."""
        with self._lock:
            used = sum(len(held.open_choices) for held in self._held.values())
        return max(self._num_slots - used, 0)
