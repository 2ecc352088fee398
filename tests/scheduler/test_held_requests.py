# SPDX-License-Identifier: Apache-2.0
"""What a worker holds, between the engine's last events and their delivery."""

from fdspec.core import FinishReason, TokenEvent
from fdspec.scheduler.broker.values import Lease, LeaseRef
from fdspec.scheduler.topic.held_requests import HeldRequests

REF = LeaseRef("r", "epoch")


def last(choice, finish=FinishReason.LENGTH):
    return TokenEvent("epoch", choice, 0, (5,), finish=finish)


def test_a_lease_ends_when_every_last_event_has_been_delivered():
    """The engine may end a choice while the last event of another one is on its way."""
    held = HeldRequests(4)
    held.add(Lease(REF, b"", ((), None, ()), 1))
    assert held.num_free_slots() == 2
    assert held.note_ends([last(0)])
    assert held.note_ends([last(2, FinishReason.HANDOFF)])
    assert held.num_free_slots() == 4
    held.note_delivery("epoch", 0)
    assert held.get("epoch") == REF
    held.note_delivery("epoch", 2)
    assert held.get("epoch") is None and held.refs() == []
    held.note_delivery("epoch", 2)
    assert not held.note_ends([last(0)])
