# SPDX-License-Identifier: Apache-2.0
"""The engine's view of a topic: `SchedulerTopic` of the core plus `publish` for its own state."""

from __future__ import annotations

from typing import Protocol

from fdspec.core.protocols import SchedulerTopic
from fdspec.scheduler.topic.messages import Status


class EngineTopic(SchedulerTopic, Protocol):
    """What an engine process holds: commands come from `poll`, everything else goes out."""

    def publish(self, status: Status) -> None:
        """Tell the clients about the engine: Ready once, EngineStats now and then, Fatal last."""
        ...

    def close(self) -> None:
        """Deliver what was sent, then free the transport. Further calls are errors."""
        ...
