# SPDX-License-Identifier: Apache-2.0
"""Members of a topic over any broker: leases, silence, death, isolation, waiting, statistics."""

import random
import threading
import time

import pytest

from fdspec.scheduler.broker.values import (
    EmitOutcome,
    FailureCode,
    LeaseRef,
    LeaseState,
    Result,
    SubmitOutcome,
)
from tests.scheduler.topic_conformance.members import QUICK_S, Worker, eventually


def test_an_ended_lease_hands_the_request_over(topic):
    """The first worker lives (its other connection says so), but does not renew the request."""
    frontend, slow, other = topic.frontend(), topic.worker("s", QUICK_S), topic.worker("v")
    frontend.submit("a", num_choices=2)
    ref = slow.one().ref
    Worker(topic.connect(), "s").renew()
    assert slow.emit(ref, 0, 1, 2) is EmitOutcome.ACCEPTED
    lease = other.one()
    assert lease.emitted == ((1, 2), ())
    assert lease.ref.epoch != ref.epoch
    # The first one goes on, as after SIGSTOP and SIGCONT, and is fenced in every verb.
    assert slow.emit(ref, 2, 3) is EmitOutcome.FENCED
    assert slow.renew(ref) == [LeaseState.LOST]
    slow.broker.nack([ref], is_fault=True)
    assert other.renew(lease.ref) == [LeaseState.HELD]
    assert other.emit(lease.ref, 2, 3, last=True) is EmitOutcome.ACCEPTED
    assert [result.payload for result in frontend.collect()] == [b"0:0:(1, 2)", b"0:2:(3,)"]


def test_a_silent_worker_loses_everything_at_once(topic):
    frontend, other = topic.frontend(), topic.worker("v")
    # Silent for 0.2 s is dead; the leases alone would last longer.
    silent = topic.worker("s", 0.6)
    for name in "abc":
        frontend.submit(name)
    assert len(silent.lease(2)) == 2
    names: list[str] = []
    while len(names) < 3:
        names += [lease.ref.request_id for lease in other.lease(5, wait_s=0.1)]
    assert names[0] == "c" and sorted(names) == ["a", "b", "c"]
    assert [worker.card.worker_id for worker in other.broker.stats().workers] == ["v"]


def test_a_worker_that_leaves_is_gone_at_once(topic):
    """What it holds goes on, as often as it likes: nobody is to blame."""
    frontend, other = topic.frontend(), topic.worker("v", role="decode")
    frontend.submit("a", decode_below=1)
    for number in range(5):
        leaving = topic.worker(f"w{number}", role="decode")
        (lease,) = leaving.lease()
        leaving.broker.leave(leaving.card)
        leaving.broker.leave(leaving.card)
        assert leaving.emit(lease.ref, 0, 1) is EmitOutcome.FENCED
        assert topic.connect().stats().workers == ()
    (lease,) = other.lease()
    assert lease.delivery == 1
    (alive,) = other.broker.stats().workers
    assert (alive.card.worker_id, alive.num_leased) == ("v", 1)


def test_renewing_keeps_a_request(topic):
    frontend, worker = topic.frontend(), topic.worker("w", 1.0)
    patient = Worker(topic.connect(30.0), "w")
    frontend.submit("a")
    ref = worker.one().ref
    assert patient.renew(ref) == [LeaseState.HELD]
    time.sleep(1.1)
    assert topic.worker("v").lease(5) == []
    assert patient.renew(ref) == [LeaseState.HELD]


def test_only_the_owner_renews(topic):
    frontend, worker, thief = topic.frontend(), topic.worker(), topic.worker("thief")
    frontend.submit("a")
    ref = worker.one().ref
    for wrong in (LeaseRef("a", "wrong"), LeaseRef("a", ""), LeaseRef("b", ref.epoch)):
        assert thief.renew(wrong) == [LeaseState.LOST]
        assert thief.emit(wrong, 0, 1) is EmitOutcome.FENCED
        thief.broker.nack([wrong])
    assert worker.renew(LeaseRef("a", "wrong"), ref) == [LeaseState.LOST, LeaseState.HELD]
    assert thief.lease(5) == []
    assert worker.emit(ref, 0, 1, last=True) is EmitOutcome.ACCEPTED


def test_a_thief_cannot_keep_a_lease_alive(topic):
    frontend, thief = topic.frontend(), topic.worker("thief")
    frontend.submit("a")
    owner = topic.worker("w", QUICK_S)
    ref = owner.one().ref
    Worker(topic.connect(), "w").renew(LeaseRef("a", "wrong"))
    thief.renew(LeaseRef("a", "wrong"))
    assert thief.one().emitted == ((),)
    assert owner.renew(ref) == [LeaseState.LOST]


def test_given_back_requests_keep_their_place(topic):
    frontend, worker = topic.frontend(), topic.worker()
    for name in "abc":
        frontend.submit(name)
    leases = worker.lease(2)
    worker.broker.nack([lease.ref for lease in leases])
    again = worker.lease(5)
    assert [lease.ref.request_id for lease in again] == ["a", "b", "c"]
    assert [lease.delivery for lease in again] == [1, 1, 1], "nobody was to blame"
    worker.broker.nack([lease.ref for lease in leases])
    assert worker.renew(*(lease.ref for lease in again)) == [LeaseState.HELD] * 3


def test_three_deliveries_without_a_token_are_enough(topic):
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a")
    for delivery in (1, 2):
        lease = worker.one()
        assert lease.delivery == delivery
        worker.broker.nack([lease.ref], is_fault=True)
    lease = worker.one()
    assert worker.emit(lease.ref, 0, 1) is EmitOutcome.ACCEPTED
    worker.broker.nack([lease.ref], is_fault=True)
    for delivery in (1, 2, 3):
        lease = worker.one()
        assert (lease.delivery, lease.emitted) == (delivery, ((1,),))
        assert frontend.collect() == (() if delivery > 1 else (Result("a", 0, b"0:0:(1,)"),))
        worker.broker.nack([lease.ref], is_fault=True)
    assert frontend.collect() == (Result("a", 0, failure=FailureCode.DEAD_LETTER),)
    assert worker.lease(5) == []
    assert worker.broker.stats().num_dead_letters == 1
    assert frontend.submit("a") is SubmitOutcome.DUPLICATE


def test_three_deaths_without_a_token_are_enough(topic):
    frontend = topic.frontend()
    frontend.submit("poison")
    for number in range(3):
        assert topic.worker(f"w{number}", QUICK_S).one().ref.request_id == "poison"
    frontend.submit("good")
    (result,) = eventually(frontend.collect, bool)
    assert result == Result("poison", 0, failure=FailureCode.DEAD_LETTER)
    assert topic.worker("v").one().ref.request_id == "good"


def test_a_silent_frontend_loses_its_requests(topic):
    silent, frontend, worker = topic.frontend("s", 0.5), topic.frontend("f"), topic.worker()
    silent.submit("waits", priority=9)
    silent.submit("runs", priority=-9)
    frontend.submit("other")
    ref, other = worker.one().ref, worker.one().ref
    assert (ref.request_id, other.request_id) == ("runs", "other")
    assert worker.emit(ref, 0, 1) is EmitOutcome.ACCEPTED
    (state,) = eventually(lambda: worker.renew(ref), lambda s: s != [LeaseState.HELD])
    assert state is LeaseState.CANCELLED
    assert worker.lease(5) == [], "nobody waits for it"
    assert worker.renew(other) == [LeaseState.HELD]
    collected = silent.broker.collect("s", silent.cursor)
    assert collected.is_new and collected.results == ()


def test_results_stay_until_the_cursor_passes_them(topic):
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a")
    ref = worker.one().ref
    worker.emit(ref, 0, 1)
    worker.emit(ref, 1, 2)
    start = frontend.cursor
    first = frontend.broker.collect("f", start)
    assert first == frontend.broker.collect("f", start), "an answer may get lost"
    assert [result.payload for result in first.results] == [b"0:0:(1,)", b"0:1:(2,)"]
    worker.emit(ref, 2, 3)
    second = frontend.broker.collect("f", first.cursor)
    assert [result.payload for result in second.results] == [b"0:2:(3,)"]
    assert not second.is_new


def test_a_request_may_precede_its_frontend(topic):
    frontend, worker = topic.frontend("f"), topic.worker()
    late = topic.connect()
    frontend.name = "late"
    frontend.submit("a")
    worker.emit(worker.one().ref, 0, 1)
    collected = late.collect("late", "")
    assert collected.is_new
    rest = late.collect("late", collected.cursor).results
    assert [result.payload for result in (*collected.results, *rest)] == [b"0:0:(1,)"]


def test_topics_do_not_see_each_other(topic, service):
    near = topic.frontend(), topic.worker()
    other = service.connect(f"{topic.name}.x")
    near[0].submit("a")
    assert other.lease(near[1].card, 5) == []
    assert other.stats().num_waiting == (0, 0)
    ref = near[1].one().ref
    assert other.renew(near[1].card, [ref]) == [LeaseState.LOST]
    other.cancel("a")
    other.nack([ref])
    assert other.collect("f", "").results == ()
    assert near[1].emit(ref, 0, 1) is EmitOutcome.ACCEPTED
    assert len(near[0].collect()) == 1
    other.close()


def test_statistics(topic):
    frontend = topic.frontend()
    topic.frontend("g")
    w = topic.worker("w", num_slots=4, num_free_blocks=7, num_blocks=9, details=b"\x00x")
    v = topic.worker("v", role="decode")
    for name in "abcd":
        frontend.submit(name)
    frontend.submit("e", decode_below=1)
    frontend.submit("f", decode_below=1)
    v.lease(1)
    w.lease(3)
    stats = w.broker.stats()
    assert stats.num_waiting == (1, 1)
    assert (stats.num_leased, stats.num_frontends, stats.num_dead_letters) == (4, 2, 0)
    assert [(worker.card, worker.num_leased) for worker in stats.workers] == [
        (v.card, 1),
        (w.card, 3),
    ]


def wakes(wait, ring):
    """What `wait` returns when `ring` happens while it waits."""
    answers: list[object] = []

    def run():
        while not answers or not answers[-1]:
            answers.append(wait())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    time.sleep(0.1)
    ring()
    thread.join(30)
    assert not thread.is_alive()
    return answers


def test_a_waiting_worker_is_woken(topic):
    frontend, worker = topic.frontend(), topic.worker()
    answers = wakes(lambda: worker.lease(4, wait_s=2.0), lambda: frontend.submit("a"))
    assert [lease.ref.request_id for lease in answers[-1]] == ["a"]


def test_a_waiting_worker_is_woken_by_a_request_that_is_given_back(topic):
    frontend, worker, other = topic.frontend(), topic.worker(), topic.worker("v")
    frontend.submit("a")
    ref = other.one().ref
    answers = wakes(lambda: worker.lease(4, wait_s=2.0), lambda: other.broker.nack([ref]))
    assert [lease.ref.request_id for lease in answers[-1]] == ["a"]


def test_a_waiting_frontend_is_woken(topic):
    frontend, worker = topic.frontend(), topic.worker()
    frontend.submit("a")
    ref = worker.one().ref
    answers = wakes(lambda: frontend.collect(2.0), lambda: worker.emit(ref, 0, 1))
    assert [result.payload for result in answers[-1]] == [b"0:0:(1,)"]


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 6))]
)
def test_each_token_arrives_once_whatever_workers_do(topic, seed):
    """Workers that die, stall, give back and repeat themselves; 40 requests, 3 workers."""
    frontend = topic.frontend()
    lengths = {f"r{n}": 3 + n % 5 for n in range(40)}
    for name in lengths:
        frontend.submit(name)
    stopping = threading.Event()
    errors: list[BaseException] = []

    def work(number):
        source = random.Random(seed * 100 + number)
        try:
            life = 0
            while not stopping.is_set():
                life += 1
                worker = topic.worker(f"w{number}.{life}", 1.5)
                live(worker, source)
        except BaseException as error:
            errors.append(error)

    def live(worker, source):
        while not stopping.is_set():
            for lease in worker.lease(1, wait_s=0.05):
                index = len(lease.emitted[0])
                while index < lengths[lease.ref.request_id]:
                    chance = source.random()
                    if chance < 0.03 and index > len(lease.emitted[0]):
                        return  # dies, with what it holds
                    if chance < 0.06:
                        worker.broker.nack([lease.ref])
                        break
                    last = index + 1 == lengths[lease.ref.request_id]
                    outcome = worker.emit(lease.ref, index, index, last=last)
                    if chance < 0.2:
                        worker.emit(lease.ref, index, index, last=last)
                    if outcome is EmitOutcome.FENCED:
                        break
                    index += 1

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(3)]
    for thread in threads:
        thread.start()
    seen: dict[str, list[str]] = {name: [] for name in lengths}
    end_s = time.monotonic() + 60
    while any(len(seen[name]) < length for name, length in lengths.items()):
        assert time.monotonic() < end_s and not errors, (seen, errors)
        for result in frontend.collect(0.1):
            assert result.failure is None
            seen[result.request_id].append(result.payload.decode())
    stopping.set()
    for thread in threads:
        thread.join()
    assert not errors
    for name, length in lengths.items():
        assert seen[name] == [f"0:{index}:({index},)" for index in range(length)]
    assert frontend.collect(0.1) == ()
