# SPDX-License-Identifier: Apache-2.0
"""The in-process topic: order, limits, waiting, and hand-over to a listener."""

import threading

from fdspec.core import Abort, TokenEvent
from fdspec.scheduler.topic import EngineMessage, EngineStats, Fatal, InProcessTopic


def event(index: int) -> TokenEvent:
    return TokenEvent("a", 0, index, (index,))


def test_commands_arrive_in_order_and_limited():
    topic = InProcessTopic()
    for name in "abcde":
        topic.send(Abort(name))
    assert [command.request_id for command in topic.poll(3, 0.0)] == ["a", "b", "c"]
    assert [command.request_id for command in topic.poll(3, 0.0)] == ["d", "e"]
    assert topic.poll(3, 0.0) == []


def test_poll_waits_for_a_command():
    topic = InProcessTopic()
    timer = threading.Timer(0.05, topic.send, [Abort("late")])
    timer.start()
    assert topic.poll(8, 30.0) == [Abort("late")]
    timer.join()


def test_receive_returns_everything_in_order_and_skips_empty_steps():
    topic = InProcessTopic()
    topic.emit([event(0), event(1)])
    topic.emit([])
    topic.publish(EngineStats(num_running=1))
    assert topic.receive() == [(event(0), event(1)), EngineStats(num_running=1)]
    assert topic.receive() == []


def test_receive_waits_for_a_message():
    topic = InProcessTopic()
    timer = threading.Timer(0.05, topic.publish, [Fatal("gone")])
    timer.start()
    assert topic.receive(30.0) == [Fatal("gone")]
    timer.join()


def test_listener_gets_earlier_and_later_messages():
    topic = InProcessTopic()
    topic.emit([event(0)])
    seen: list[EngineMessage] = []
    topic.listen(seen.append)
    topic.emit([event(1)])
    assert seen == [(event(0),), (event(1),)]
    assert topic.receive() == []


def test_close_drops_what_nobody_took():
    topic = InProcessTopic()
    topic.send(Abort("a"))
    topic.emit([event(0)])
    topic.close()
    assert topic.poll(1, 0.0) == []
    assert topic.receive() == []
