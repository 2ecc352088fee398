# SPDX-License-Identifier: Apache-2.0
"""Scheduler topic: how requests reach an engine and token events come back.

`EngineTopic` is the engine's view, `TopicClient` the frontend's. Back ends: `InProcessTopic` inside
one process, `LocalEngineTopic`/`LocalTopicClient` between two processes of a machine.
"""

from fdspec.scheduler.topic.client import EventStream, InProcessClient, ShuttingDown, TopicClient
from fdspec.scheduler.topic.codec import CodecError
from fdspec.scheduler.topic.in_process import InProcessTopic
from fdspec.scheduler.topic.interface import EngineTopic
from fdspec.scheduler.topic.local_socket import LocalEngineTopic, LocalTopicClient
from fdspec.scheduler.topic.messages import EngineMessage, EngineStats, Fatal, Ready, Status

__all__ = [
    "CodecError",
    "EngineMessage",
    "EngineStats",
    "EngineTopic",
    "EventStream",
    "Fatal",
    "InProcessClient",
    "InProcessTopic",
    "Ready",
    "ShuttingDown",
    "Status",
    "TopicClient",
    "LocalEngineTopic",
    "LocalTopicClient",
]
