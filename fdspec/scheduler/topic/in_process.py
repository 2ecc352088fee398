# SPDX-License-Identifier: Apache-2.0
"""The topic inside one process: two queues and a condition. For offline use and for tests.

The engine side (`poll`, `emit`, `publish`) and the client side (`send`, `receive`, `listen`) may be
used from different threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from fdspec.core import Command, TokenEvent
from fdspec.scheduler.topic.messages import EngineMessage, Status


class InProcessTopic:
    """Both ends of a topic; implements `EngineTopic`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._commands: deque[Command] = deque()
        self._messages: deque[EngineMessage] = deque()
        self._listener: Callable[[EngineMessage], None] | None = None

    def poll(self, limit: int, timeout_s: float) -> list[Command]:
        """Up to `limit` commands in order; waits up to timeout_s if there are none."""
        with self._changed:
            if not self._commands and timeout_s > 0:
                self._changed.wait_for(lambda: bool(self._commands), timeout_s)
            count = min(limit, len(self._commands))
            return [self._commands.popleft() for _ in range(count)]

    def emit(self, events: Sequence[TokenEvent]) -> None:
        """Hand the events of one step to the client."""
        if events:
            self._deliver(tuple(events))

    def publish(self, status: Status) -> None:
        """Hand a status message to the client."""
        self._deliver(status)

    def close(self) -> None:
        """Drop what nobody has taken."""
        with self._changed:
            self._commands.clear()
            self._messages.clear()

    def send(self, command: Command) -> None:
        """Client side: queue a command for the engine."""
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()

    def receive(self, timeout_s: float = 0.0) -> list[EngineMessage]:
        """Client side: all messages so far, in order; waits up to timeout_s if there are none."""
        with self._changed:
            if not self._messages and timeout_s > 0:
                self._changed.wait_for(lambda: bool(self._messages), timeout_s)
            messages = list(self._messages)
            self._messages.clear()
            return messages

    def listen(self, listener: Callable[[EngineMessage], None]) -> None:
        """Client side: hand every message to `listener`, in the engine's thread, from now on.

        Messages that arrived before are handed over first; `receive` then stays empty.
        """
        with self._changed:
            self._listener = listener
            while self._messages:
                listener(self._messages.popleft())

    def _deliver(self, message: EngineMessage) -> None:
        with self._changed:
            if self._listener is not None:
                self._listener(message)
                return
            self._messages.append(message)
            self._changed.notify_all()
