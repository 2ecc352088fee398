# SPDX-License-Identifier: Apache-2.0
"""From an address to a connection: the one place that knows every kind of broker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fdspec.config import TopicConfig
from fdspec.config.broker_address import EMBEDDED, BrokerAddress
from fdspec.scheduler.broker.interface import Broker
from fdspec.scheduler.broker.values import Timing


def opener(config: TopicConfig) -> Callable[[], Broker]:
    """What connects a member to the topic of a configuration, once for each of its threads."""
    timing = Timing(config.scheduler_lease)
    return partial(connect, config.address, config.scheduler_topic, timing)


def connect(
    address: BrokerAddress, topic: str, timing: Timing, *, connect_s: float = 3.0
) -> Broker:
    """A connection for one thread; nothing is sent yet.

    Args:
        address: of a running broker.
        topic: name of the topic, already checked.
        timing: how long this member may be silent.
        connect_s: how long a call tries to reach the broker.

    Raises:
        ConfigError: its keys cannot be read.
    """
    assert address.url != EMBEDDED, "an embedded broker is started first"
    if address.is_zmq:
        from fdspec.scheduler.broker.zmq_broker import ZmqBroker

        return ZmqBroker(address, topic, timing, connect_s=connect_s)
    from fdspec.scheduler.broker.redis_broker import RedisBroker

    return RedisBroker(address, topic, timing, connect_s=connect_s)
