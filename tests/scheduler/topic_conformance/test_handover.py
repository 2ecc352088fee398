# SPDX-License-Identifier: Apache-2.0
"""From prefill to decode workers over any broker: offers, queues, stand-ins, faults."""

import pytest

from fdspec.scheduler.broker.values import EmitOutcome, LeaseState, SubmitOutcome
from tests.scheduler.topic_conformance.members import QUICK_S, eventually

ACCEPTED, FENCED = EmitOutcome.ACCEPTED, EmitOutcome.FENCED


@pytest.fixture
def members(topic):
    """A frontend, a prefill worker, and a decode worker that lives."""
    decode = topic.worker("d", role="decode")
    assert decode.lease() == []
    return topic.frontend(), topic.worker("p", role="prefill"), decode


def test_a_first_token_with_an_offer_moves_the_request(members):
    frontend, prefill, decode = members
    frontend.submit("a")
    lease = prefill.one()
    assert (lease.emitted, lease.offers) == (((),), (b"",))
    offer = bytes(range(256))
    assert prefill.emit(lease.ref, 0, 7, offer=offer) is ACCEPTED
    assert decode.broker.stats().num_waiting == (0, 1)
    assert prefill.lease(5) == []
    # The lease has ended with it, and whoever repeats the emission changes nothing.
    assert prefill.emit(lease.ref, 0, 7, offer=offer) is FENCED
    assert prefill.renew(lease.ref) == [LeaseState.LOST]
    after = decode.one()
    assert (after.emitted, after.offers, after.delivery) == (((7,),), (offer,), 1)
    assert after.payload == b"payload of a" and after.ref.epoch != lease.ref.epoch
    assert decode.emit(after.ref, 1, 8, last=True) is ACCEPTED
    assert [r.payload for r in frontend.collect()] == [b"0:0:(7,)", b"0:1:(8,)"]
    stats = decode.broker.stats()
    assert (stats.num_waiting, stats.num_leased) == ((0, 0), 0)


def test_choices_move_together_and_only_those_that_go_on(members):
    frontend, prefill, decode = members
    frontend.submit("a", num_choices=4)
    ref = prefill.one().ref
    assert prefill.emit(ref, 0, 1, choice=2, offer=b"two") is ACCEPTED
    assert prefill.emit(ref, 0, 2, choice=1, last=True) is ACCEPTED
    assert prefill.emit(ref, 0, 3, choice=0, offer=b"zero") is ACCEPTED
    assert decode.lease(5) == [] and prefill.renew(ref) == [LeaseState.HELD]
    assert prefill.emit(ref, 0, 4, choice=3, last=True) is ACCEPTED, "the last one may end it"
    lease = decode.one()
    assert lease.emitted == ((3,), None, (1,), None)
    assert lease.offers == (b"zero", b"", b"two", b"")
    assert decode.emit(lease.ref, 1, 5, choice=2, last=True) is ACCEPTED
    assert decode.emit(lease.ref, 1, 6) is ACCEPTED, "it stays where it is"
    assert decode.renew(lease.ref) == [LeaseState.HELD]


def test_a_request_that_ends_in_prefill_never_reaches_decode(members):
    frontend, prefill, decode = members
    frontend.submit("a", num_choices=2)
    ref = prefill.one().ref
    assert prefill.emit(ref, 0, 1, choice=0, last=True) is ACCEPTED
    assert prefill.emit(ref, 0, 1, choice=1, last=True) is ACCEPTED
    assert decode.lease(5) == [] and prefill.renew(ref) == [LeaseState.LOST]


@pytest.mark.parametrize("is_fault", [True, False])
def test_decode_gives_a_request_back_to_prefill(members, is_fault):
    frontend, prefill, decode = members
    frontend.submit("a")
    prefill.emit(prefill.one().ref, 0, 1, offer=b"x")
    lease = decode.one()
    decode.emit(lease.ref, 1, 2, 3)
    decode.broker.nack([lease.ref], is_fault=is_fault)
    assert decode.lease(5) == []
    again = prefill.one()
    assert (again.emitted, again.offers) == (((1, 2, 3),), (b"",))
    assert prefill.emit(again.ref, 3, 4, offer=b"y") is ACCEPTED
    assert decode.one().offers == (b"y",)


def test_a_decode_worker_that_dies_before_its_first_token(topic):
    frontend, prefill = topic.frontend(), topic.worker("p", role="prefill")
    silent = topic.worker("s", QUICK_S, role="decode")
    frontend.submit("a")
    prefill.emit(prefill.one().ref, 0, 1, offer=b"x")
    assert silent.one().offers == (b"x",)
    again = prefill.one()
    assert (again.emitted, again.offers, again.delivery) == (((1,),), (b"",), 2)


def test_offers_of_a_prefill_worker_that_dies_are_forgotten(topic):
    frontend, prefill = topic.frontend(), topic.worker("v", role="prefill")
    silent = topic.worker("s", QUICK_S, role="prefill")
    frontend.submit("a", num_choices=2)
    ref = silent.one().ref
    assert silent.emit(ref, 0, 1, choice=1, offer=b"x") is ACCEPTED
    again = prefill.one()
    assert (again.emitted, again.offers) == (((), (1,)), (b"", b""))
    assert prefill.emit(again.ref, 0, 5, offer=b"y") is ACCEPTED
    decode = topic.worker("d", role="decode")
    assert decode.lease() == [], "the other choice has no offer that is worth something"
    assert prefill.emit(again.ref, 1, 6, choice=1, offer=b"z") is ACCEPTED
    assert decode.one().offers == (b"y", b"z")


def test_an_offer_may_come_without_a_token(members):
    frontend, prefill, decode = members
    frontend.submit("a")
    assert prefill.emit(prefill.one().ref, 0, offer=b"x") is ACCEPTED
    lease = decode.one()
    assert (lease.emitted, lease.offers, lease.delivery) == (((),), (b"x",), 1)


def test_handed_over_requests_keep_their_place(members):
    frontend, prefill, decode = members
    for name, priority in (("a", 1), ("b", 0), ("c", 1)):
        frontend.submit(name, priority=priority)
    leases = {lease.ref.request_id: lease.ref for lease in prefill.lease(3)}
    for name in "cab":
        prefill.emit(leases[name], 0, 1, offer=b"x")
    assert [lease.ref.request_id for lease in decode.lease(3)] == ["b", "a", "c"]


def test_a_request_that_waits_for_decode_can_be_cancelled(members):
    frontend, prefill, decode = members
    frontend.submit("a")
    prefill.emit(prefill.one().ref, 0, 1, offer=b"x")
    frontend.broker.cancel("a")
    assert decode.lease(5) == []
    assert decode.broker.stats().num_waiting == (0, 0)


def test_short_requests_go_to_decode_at_once(members):
    frontend, prefill, decode = members
    frontend.submit("short", decode_below=3)
    frontend.submit("long", decode_below=0)
    assert [lease.ref.request_id for lease in prefill.lease(5)] == ["long"]
    lease = decode.one()
    assert (lease.ref.request_id, lease.offers) == ("short", (b"",))
    decode.emit(lease.ref, 0, 1, 2)
    decode.broker.nack([lease.ref])
    again = decode.one()
    assert again.emitted == ((1, 2),)
    decode.emit(again.ref, 2, 3)
    decode.broker.nack([again.ref])
    assert decode.lease(5) == [], "with its output it is not short any more"
    assert prefill.one().emitted == ((1, 2, 3),)
    assert frontend.submit("short", decode_below=3, attempt=1, emitted=((1,),)) is (
        SubmitOutcome.QUEUED
    )
    assert decode.one().emitted == ((1,),)


def test_mixed_workers_stand_in_for_decode_workers(topic):
    frontend, prefill, mixed = topic.frontend(), topic.worker("p", role="prefill"), topic.worker()
    decode = topic.worker("d", QUICK_S, role="decode")
    decode.lease()
    for name in "ab":
        frontend.submit(name)
    for lease in prefill.lease(2):
        prefill.emit(lease.ref, 0, 1, offer=b"x")
    taken = eventually(lambda: mixed.lease(5), bool)
    assert [lease.ref.request_id for lease in taken] == ["a", "b"], "once decode is dead"
    assert taken[0].offers == (b"x",)


def test_mixed_workers_leave_decode_alone_while_it_lives(members, topic):
    frontend, prefill, decode = members
    mixed = topic.worker("m")
    frontend.submit("a")
    frontend.submit("b")
    prefill.emit(prefill.one().ref, 0, 1, offer=b"x")
    assert [lease.ref.request_id for lease in mixed.lease(5)] == ["b"]
    assert decode.one().ref.request_id == "a"


def test_without_the_workers_it_needs_a_request_may_be_refused(topic):
    frontend, number = topic.frontend(), iter(range(99))

    def outcome(**changes):
        return frontend.submit(str(next(number)), needs_worker=True, **changes)

    assert outcome() is SubmitOutcome.NO_WORKER
    assert frontend.broker.stats().missing_roles() == ("mixed",)
    topic.worker("d", role="decode").lease(0)
    assert outcome() is SubmitOutcome.NO_WORKER
    assert outcome(decode_below=1) is SubmitOutcome.QUEUED
    assert frontend.broker.stats().missing_roles() == ("prefill",)
    topic.worker("p", role="prefill").lease(0)
    assert outcome() is SubmitOutcome.QUEUED
    assert frontend.broker.stats().missing_roles() == ()


def test_a_mixed_worker_alone_is_enough(topic):
    frontend = topic.frontend()
    topic.worker("p", role="prefill").lease(0)
    assert frontend.submit("a", needs_worker=True) is SubmitOutcome.NO_WORKER
    assert frontend.broker.stats().missing_roles() == ("decode",)
    topic.worker("m").lease(0)
    assert frontend.submit("a", needs_worker=True) is SubmitOutcome.QUEUED
