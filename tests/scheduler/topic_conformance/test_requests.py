# SPDX-License-Identifier: Apache-2.0
"""A request's way over any broker: order, progress, repetition, refusal, cancel, expiry."""

import pytest

from fdspec.scheduler.broker.interface import MAX_PAYLOAD_BYTES, PayloadTooLarge
from fdspec.scheduler.broker.values import (
    Emission,
    EmitOutcome,
    FailureCode,
    LeaseRef,
    LeaseState,
    Result,
    Submission,
    SubmitOutcome,
)
from tests.scheduler.topic_conformance.members import eventually

ACCEPTED, DUPLICATE, FENCED = EmitOutcome.ACCEPTED, EmitOutcome.DUPLICATE, EmitOutcome.FENCED
QUEUED = SubmitOutcome.QUEUED


def test_a_request_goes_to_a_worker_and_its_tokens_come_back(topic):
    frontend, worker = topic.frontend(), topic.worker()
    assert frontend.submit("a") is QUEUED
    (lease,) = worker.lease()
    assert lease.ref.request_id == "a" and lease.payload == b"payload of a"
    assert (lease.emitted, lease.delivery) == (((),), 1)
    assert worker.lease() == []
    assert worker.emit(lease.ref, 0, 5, 6) is ACCEPTED
    assert worker.emit(lease.ref, 2, 7, last=True) is ACCEPTED
    assert frontend.collect() == (
        Result("a", 0, b"0:0:(5, 6)"),
        Result("a", 0, b"0:2:(7,)"),
    )
    assert frontend.collect() == ()
    assert worker.renew(lease.ref) == [LeaseState.LOST], "it has ended"
    stats = worker.broker.stats()
    assert (stats.num_waiting, stats.num_leased) == ((0, 0), 0)


def test_many_emissions_in_one_call(topic):
    frontend, other, worker = topic.frontend("f"), topic.frontend("g"), topic.worker()
    frontend.submit("a", num_choices=2)
    other.submit("b")
    a, b = worker.lease(9)
    emissions = [
        Emission(a.ref, 1, 0, (3,), False, b"a1"),
        Emission(b.ref, 0, 0, (4,), True, b"b0"),
        Emission(LeaseRef("c", "?"), 0, 0, (4,), True, b"c0"),
        Emission(a.ref, 0, 0, (5,), True, b"a0"),
        Emission(a.ref, 1, 1, (), True, b"a1 end"),
    ]
    assert worker.broker.emit(emissions) == [ACCEPTED, ACCEPTED, FENCED, ACCEPTED, ACCEPTED]
    assert [r.payload for r in frontend.collect()] == [b"a1", b"a0", b"a1 end"]
    assert [r.payload for r in other.collect()] == [b"b0"]
    assert worker.broker.emit([]) == []
    assert worker.renew(a.ref, b.ref) == [LeaseState.LOST] * 2


def test_priority_then_arrival(topic):
    frontend, worker = topic.frontend(), topic.worker()
    for name, priority in [("a", 5), ("b", 0), ("c", 5), ("d", -(2**31)), ("e", 0), ("f", 2**31)]:
        frontend.submit(name, priority=priority)
    order = [lease.ref.request_id for lease in worker.lease(3) + worker.lease(10)]
    assert order == ["d", "b", "e", "a", "c", "f"]


def test_slots_are_counted_in_choices(topic):
    frontend, worker = topic.frontend(), topic.worker()
    for name, count in [("a", 3), ("b", 1), ("c", 4), ("d", 1)]:
        frontend.submit(name, num_choices=count)
    assert [lease.ref.request_id for lease in worker.lease(4)] == ["a", "b"]
    assert [lease.ref.request_id for lease in worker.lease(2)] == ["c"], "the last one may exceed"
    assert worker.lease(0) == []
    assert [lease.ref.request_id for lease in worker.lease(1)] == ["d"]


def test_submitting_again_changes_nothing(topic):
    frontend, worker = topic.frontend(), topic.worker()
    assert [frontend.submit("a") for _ in range(3)] == [QUEUED] + 2 * [SubmitOutcome.DUPLICATE]
    (lease,) = worker.lease(5)
    assert frontend.submit("a") is SubmitOutcome.DUPLICATE
    assert worker.emit(lease.ref, 0, 1, last=True) is ACCEPTED
    assert frontend.submit("a") is SubmitOutcome.DUPLICATE, "not even after its end"
    assert worker.lease(5) == []
    assert len(frontend.collect()) == 1


def test_emitting_again_changes_nothing(topic):
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a", num_choices=2)
    ref = worker.one().ref
    assert worker.emit(ref, 0, 1, 2) is ACCEPTED
    assert worker.emit(ref, 0, 1, 2) is DUPLICATE
    assert worker.emit(ref, 2, last=True) is ACCEPTED, "an end without a token"
    assert worker.emit(ref, 2, last=True) is DUPLICATE
    assert worker.emit(ref, 2, 3) is DUPLICATE, "the choice has ended"
    assert worker.emit(ref, 0, 9, choice=1, last=True) is ACCEPTED
    assert worker.emit(ref, 0, 9, choice=1, last=True) is FENCED, "the request has ended"
    assert len(frontend.collect()) == 3


def test_a_gap_is_fenced_and_the_request_goes_on_elsewhere(topic):
    frontend, worker, other = topic.frontend(), topic.worker(), topic.worker("v")
    frontend.submit("a")
    ref = worker.one().ref
    assert worker.emit(ref, 0, 1) is ACCEPTED
    assert worker.emit(ref, 2, 3) is FENCED
    assert worker.emit(ref, 1, 2) is FENCED
    lease = other.one()
    assert lease.emitted == ((1,),)
    assert other.emit(lease.ref, 1, 2, last=True) is ACCEPTED
    assert [r.payload for r in frontend.collect()] == [b"0:0:(1,)", b"0:1:(2,)"]


def test_a_higher_attempt_replaces_the_request(topic):
    """The frontend says from where to go on; whoever computed it before is fenced."""
    frontend, worker, other = topic.frontend(), topic.worker(), topic.worker("v")
    frontend.submit("a", num_choices=3)
    old = worker.one().ref
    worker.emit(old, 0, 1, 2)
    assert frontend.submit("a", num_choices=3, attempt=1, emitted=((1,), None, ())) is QUEUED
    assert worker.emit(old, 2, 3) is FENCED
    assert worker.renew(old) == [LeaseState.LOST]
    lease = other.one()
    assert (lease.emitted, lease.delivery) == (((1,), None, ()), 1)
    assert other.emit(lease.ref, 1, 2, last=True) is ACCEPTED
    assert other.emit(lease.ref, 0, 7, choice=1) is DUPLICATE
    assert other.emit(lease.ref, 0, 8, choice=2, last=True) is ACCEPTED
    assert [r.attempt for r in frontend.collect()] == [0, 1, 1]
    assert frontend.submit("a", num_choices=3, attempt=1) is SubmitOutcome.DUPLICATE
    assert worker.broker.stats().num_leased == 0


def test_a_higher_attempt_while_it_waits(topic):
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a")
    frontend.submit("a", attempt=2, emitted=((4,),))
    (lease,) = worker.lease(9)
    assert lease.emitted == ((4,),)


def test_a_cancelled_request_that_waits_is_gone(topic):
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a")
    frontend.submit("b")
    frontend.broker.cancel("a")
    frontend.broker.cancel("a")
    frontend.broker.cancel("unknown")
    assert [lease.ref.request_id for lease in worker.lease(5)] == ["b"]
    assert frontend.collect() == ()


def test_a_worker_hears_of_a_cancel_when_it_emits(topic):
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a")
    ref = worker.one().ref
    worker.emit(ref, 0, 1)
    frontend.collect()
    frontend.broker.cancel("a")
    assert worker.emit(ref, 1, 2) is EmitOutcome.CANCELLED
    assert worker.emit(ref, 1, 2) is FENCED
    assert frontend.collect() == ()
    assert worker.lease(5) == []


def test_a_worker_hears_of_a_cancel_when_it_renews(topic):
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a")
    ref = worker.one().ref
    frontend.broker.cancel("a")
    assert worker.renew(ref) == [LeaseState.CANCELLED]
    assert worker.renew(ref) == [LeaseState.LOST]
    assert worker.broker.stats().num_leased == 0


def test_a_cancelled_request_that_is_given_back_is_gone(topic):
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a")
    ref = worker.one().ref
    frontend.broker.cancel("a")
    worker.broker.nack([ref])
    assert worker.lease(5) == []


def test_a_request_expires_while_it_waits(topic):
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a", ttl_s=0.1)
    frontend.submit("b")
    results = eventually(frontend.collect, bool)
    assert results == (Result("a", 0, failure=FailureCode.EXPIRED),)
    assert [lease.ref.request_id for lease in worker.lease(5)] == ["b"]


def test_a_request_expires_while_it_is_computed(topic):
    """The time runs from its submission, whatever happens to it."""
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a", ttl_s=0.3)
    ref = worker.one().ref
    results = eventually(frontend.collect, bool)
    assert results == (Result("a", 0, failure=FailureCode.EXPIRED),)
    assert worker.renew(ref) == [LeaseState.LOST]
    assert worker.emit(ref, 0, 1) is FENCED
    assert frontend.submit("a") is SubmitOutcome.DUPLICATE


def test_a_full_queue_refuses(topic):
    frontend, worker = topic.frontend(), topic.worker()
    assert [frontend.submit(name, max_waiting=2) for name in "abc"] == [
        QUEUED,
        QUEUED,
        SubmitOutcome.BUSY,
    ]
    assert frontend.submit("d") is QUEUED, "0 is no limit"
    assert frontend.submit("a", max_waiting=2) is SubmitOutcome.DUPLICATE
    assert frontend.submit("a", max_waiting=1, attempt=1) is QUEUED, "it was let in before"
    worker.lease(2)
    assert frontend.submit("c", max_waiting=2) is QUEUED


IDS = [
    "#",
    "a b",
    "a:b",
    "a\nb\0c",
    "{x}",
    "fd:{t}:m:a",
    "*",
    "ü€\U0001f600",
    "0" * 5000,
    "a-b-1-0",
]


@pytest.mark.parametrize("request_id", IDS, ids=range(len(IDS)))
def test_any_character_is_safe_in_an_id(topic, request_id):
    frontend, worker = topic.frontend(), topic.worker()
    assert frontend.submit(request_id, num_choices=2) is QUEUED
    (lease,) = worker.lease()
    assert lease.ref.request_id == request_id
    assert worker.emit(lease.ref, 0, 1, 2**31 - 1) is ACCEPTED
    worker.broker.nack([lease.ref])
    (lease,) = worker.lease()
    assert lease.emitted == ((1, 2**31 - 1), ())
    (result,) = frontend.collect()
    assert result.request_id == request_id
    frontend.broker.cancel(request_id)
    assert worker.renew(lease.ref) == [LeaseState.CANCELLED]


def test_payloads_are_bytes_and_limited(topic):
    frontend, worker = topic.frontend(), topic.worker()
    payload = bytes(range(256)) * 4096
    assert frontend.broker.submit(Submission("a", "f", payload)) is QUEUED
    (lease,) = worker.lease()
    assert lease.payload == payload
    worker.broker.emit([Emission(lease.ref, 0, 0, (1,), False, payload)])
    assert [result.payload for result in frontend.collect()] == [payload]
    large = b"x" * (MAX_PAYLOAD_BYTES + 1)
    with pytest.raises(PayloadTooLarge, match="16777217 bytes is over the limit of 16777216"):
        frontend.broker.submit(Submission("b", "f", large))
    with pytest.raises(PayloadTooLarge):
        worker.broker.emit([Emission(lease.ref, 0, 1, (1,), False, large)])
    assert worker.renew(lease.ref) == [LeaseState.HELD], "the connection goes on"
    assert worker.lease(5) == []
