# SPDX-License-Identifier: Apache-2.0
"""Order of service: priority, arrival or fair shares, and nobody starves."""

from collections import Counter
from dataclasses import replace

from fdspec.core import Abort
from fdspec.scheduler.waiting import AGEING_INTERVAL, FairShares
from tests.scheduler.batch_steps import make, rows, step, submit


def order_of_service(scheduler):
    """Names in order, each served for one step."""
    order = []
    while scheduler.has_work():
        order += rows(step(scheduler)[0])
    return order


def test_low_priority_is_served_every_so_often():
    scheduler, _ = make(max_num_seqs=1)
    scheduler.add(submit("low", 2, priority=5, max_tokens=1))
    served = []
    for number in range(3 * AGEING_INTERVAL):
        scheduler.add(submit(f"urgent {number}", 2, max_tokens=1))
        served += rows(step(scheduler)[0])
    assert served.index("low") == AGEING_INTERVAL - 1


def test_who_overtook_by_age_is_not_preempted_for_later_ones():
    scheduler, _ = make(num_blocks=11, max_num_seqs=2)
    scheduler.add(submit("low", 2, priority=5, max_tokens=30))
    for number in range(AGEING_INTERVAL + 4):
        scheduler.add(submit(f"urgent {number}", 7, max_tokens=20))
    ended = []
    while "low" not in ended:
        _, events = step(scheduler)
        ended += [event.request_id for event in events if event.finish]
        assert len(ended) < AGEING_INTERVAL + 4


def test_users_get_equal_shares_of_tokens():
    for fair in (False, True):
        scheduler, _ = make(max_num_seqs=1, fair_share_by_user=fair)
        for number in range(8):
            scheduler.add(replace(submit(f"greedy{number}", 10, max_tokens=1), user="greedy"))
        for number in range(4):
            scheduler.add(replace(submit(f"modest{number}", 4, max_tokens=1), user="modest"))
        first = Counter(name[:6] for name in order_of_service(scheduler)[:6])
        assert first == ({"greedy": 2, "modest": 4} if fair else {"greedy": 6})


def test_a_user_who_was_away_has_no_credit():
    shares = FairShares()
    assert [shares.take_turn("a", 10) for _ in range(3)] == [0, 10, 20]
    shares.served(20)
    assert shares.take_turn("b", 5) == 20
    assert shares.take_turn("a", 10) == 30
    shares.served(30)
    assert shares.take_turn("b", 5) == 30


def test_fair_shares_stay_within_a_priority():
    scheduler, _ = make(max_num_seqs=1, fair_share_by_user=True)
    for name, user, priority in (("a", "x", 1), ("b", "x", 0), ("c", "x", 0), ("d", "y", 0)):
        scheduler.add(replace(submit(name, 2, priority=priority, max_tokens=1), user=user))
    assert order_of_service(scheduler) in (list("bdca"), list("dbca"))


def test_aborted_requests_leave_the_queue():
    scheduler, _ = make(max_num_seqs=1)
    for name in "abc":
        scheduler.add(submit(name, 2, max_tokens=1))
    scheduler.add(Abort("a"))
    scheduler.check()
    scheduler.add(submit("a", 2, max_tokens=1))
    assert order_of_service(scheduler) == list("bca")
