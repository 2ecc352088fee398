# SPDX-License-Identifier: Apache-2.0
"""What a server knows of the workers of its topic, by asking now and then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from fdspec.scheduler.broker.interface import BrokerError, BrokerUnavailable
from fdspec.scheduler.broker.values import Role, TopicStats
from fdspec.scheduler.topic.client import TopicClient
from fdspec.scheduler.topic.codec import decode
from fdspec.scheduler.topic.messages import EngineStats, Ready
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

_INTERVAL_S = 1.0


async def watch_workers(client: TopicClient, *, has_engine: bool) -> None:
    """Tell a client how its topic stands; runs until cancelled.

    Without an engine of its own, it hears of all workers as if they were one. The first one that
    comes up makes it ready: all workers of a topic serve the same model.

    Raises:
        BrokerRefused: the broker will not have us, and without an engine there is nothing to do.
    """
    client.has_engine = has_engine
    is_told = False
    was_there = False
    while True:
        with contextlib.suppress(BrokerError if has_engine else BrokerUnavailable):
            stats = await client.topic_stats()
            client.on_topic(stats)
            if stats.missing_roles() != client.missing_roles:
                client.missing_roles = stats.missing_roles()
                _tell_what_is_missing(client.missing_roles)
            if not has_engine:
                _tell_of_workers(client, stats)
            elif was_there := was_there or _has_engine_of(client, stats):
                _note_silence(client, not _has_engine_of(client, stats))
        if client.ready is None and not is_told:
            logger.info("waiting for a worker on the topic")
            is_told = True
        await asyncio.sleep(_INTERVAL_S)


def _tell_what_is_missing(roles: Sequence[Role]) -> None:
    if roles:
        logger.warning("no %s worker is alive on the topic", " and no ".join(roles))
    else:
        logger.info("every kind of worker that requests need is alive on the topic")


def _has_engine_of(client: TopicClient, stats: TopicStats) -> bool:
    """Whether the engine beside this server is among the living workers."""
    ready = client.ready
    ids = {worker.card.worker_id for worker in stats.workers}
    return ready is not None and ready.worker_id in ids


def _note_silence(client: TopicClient, is_silent: bool) -> None:
    if is_silent and not client.is_engine_silent:
        logger.warning("the topic does not hear from the engine of this server")
    elif client.is_engine_silent and not is_silent:
        logger.info("the topic hears from the engine of this server again")
    client.is_engine_silent = is_silent


def _tell_of_workers(client: TopicClient, stats: TopicStats) -> None:
    if client.ready is None and stats.workers:
        ready = decode(stats.workers[0].card.details)
        assert isinstance(ready, Ready)
        client.dispatch(ready)
    client.dispatch(_sum(stats))


def _sum(stats: TopicStats) -> EngineStats:
    cards = [worker.card for worker in stats.workers]
    return EngineStats(
        num_running=sum(card.num_running for card in cards),
        num_waiting=sum(stats.num_waiting) + sum(card.num_waiting for card in cards),
        num_blocks=sum(card.num_blocks for card in cards),
        num_free_blocks=sum(card.num_free_blocks for card in cards),
    )
