# SPDX-License-Identifier: Apache-2.0
"""The engine process's end of its topic: private to its server, or shared at a broker."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable

from fdspec.config import EngineConfig
from fdspec.core.protocols import KVHandoff
from fdspec.scheduler.broker.connecting import opener
from fdspec.scheduler.broker.values import Timing, WorkerCard
from fdspec.scheduler.topic import BrokerEngineTopic, LocalEngineTopic


def join_topic(config: EngineConfig, endpoint: str) -> LocalEngineTopic | BrokerEngineTopic:
    """Connect.

    Args:
        config: says which topic.
        endpoint: of the server that started this process; it hears how the engine stands.
    """
    server = LocalEngineTopic(endpoint)
    if not config.topic.is_shared:
        return server
    role = config.topic.splitwise_role
    assert role != "frontend", "a frontend has no engine"
    card = WorkerCard(uuid.uuid4().hex, role, name=f"{socket.gethostname()}:{os.getpid()}")
    timing = Timing(config.topic.scheduler_lease)
    return BrokerEngineTopic(opener(config.topic), card, timing, server=server)


class Drain:
    """When an engine that was asked to end may do so: its requests are done, or time is up.

    What it still holds then goes on elsewhere.

    Args:
        topic: shared; takes no more requests from the first time that the end is asked for.
        handoff: what it offers is to be read before it ends.
        is_asked: True once somebody wants the engine to end.
        limit_s: how long requests may take to finish.
    """

    def __init__(
        self,
        topic: BrokerEngineTopic,
        handoff: KVHandoff,
        is_asked: Callable[[], bool],
        limit_s: float,
    ) -> None:
        self._topic = topic
        self._handoff = handoff
        self._is_asked = is_asked
        self._limit_s = limit_s
        self._end_s: float | None = None

    def __call__(self) -> bool:
        """True when the engine may end."""
        if not self._is_asked():
            return False
        if self._end_s is None:
            self._topic.stop_leasing()
            self._end_s = time.monotonic() + self._limit_s
        is_done = self._topic.num_held == 0 and self._handoff.num_open == 0
        return is_done or time.monotonic() >= self._end_s
