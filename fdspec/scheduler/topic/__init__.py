# SPDX-License-Identifier: Apache-2.0
"""Scheduler topic: how requests reach an engine and token events come back.

`EngineTopic` is the engine's view, `TopicClient` the frontend's. Back ends: `InProcessTopic` inside
one process, `LocalEngineTopic`/`LocalTopicClient` between two processes of a machine,
`BrokerEngineTopic`/`BrokerTopicClient` for any number of them around a broker.
"""

from fdspec.scheduler.topic.broker_client import BrokerTopicClient, NoWorker, TopicBusy
from fdspec.scheduler.topic.broker_worker import BrokerEngineTopic
from fdspec.scheduler.topic.client import (
    EventStream,
    InProcessClient,
    OneWorkerOnly,
    ShuttingDown,
    TopicClient,
)
from fdspec.scheduler.topic.codec import CodecError
from fdspec.scheduler.topic.in_process import InProcessTopic
from fdspec.scheduler.topic.interface import EngineTopic
from fdspec.scheduler.topic.local_socket import LocalEngineTopic, LocalTopicClient
from fdspec.scheduler.topic.messages import (
    Cleared,
    EngineMessage,
    EngineStats,
    Fatal,
    Ready,
    Status,
)
from fdspec.scheduler.topic.sent_request import Terms
from fdspec.scheduler.topic.worker_watch import watch_workers

__all__ = [
    "Cleared",
    "BrokerEngineTopic",
    "BrokerTopicClient",
    "CodecError",
    "EngineMessage",
    "EngineStats",
    "EngineTopic",
    "EventStream",
    "Fatal",
    "InProcessClient",
    "InProcessTopic",
    "Ready",
    "OneWorkerOnly",
    "ShuttingDown",
    "Status",
    "TopicClient",
    "LocalEngineTopic",
    "LocalTopicClient",
    "NoWorker",
    "Terms",
    "TopicBusy",
    "watch_workers",
]
