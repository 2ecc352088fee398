# SPDX-License-Identifier: Apache-2.0
"""A server's membership of a shared topic: reach the broker, join, hear from one's own engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fdspec.config import EngineConfig, TopicConfig
from fdspec.core import ConfigError
from fdspec.scheduler.broker.connecting import opener
from fdspec.scheduler.broker.curve_keys import load_member_keys
from fdspec.scheduler.broker.interface import BrokerUnavailable
from fdspec.scheduler.broker.values import Timing
from fdspec.scheduler.topic import BrokerTopicClient, Terms, TopicClient, watch_workers
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)


def check_broker(config: TopicConfig) -> None:
    """Ask the broker something before anything is started; one that is not there yet may come.

    Raises:
        BrokerRefused: it will not have us.
        ConfigError: our keys cannot be read.
    """
    broker = opener(config)()
    try:
        broker.stats()
    except BrokerUnavailable as error:
        logger.warning("the broker cannot be reached yet: %s", error)
    finally:
        broker.close()


def check_handoff_keys(config: EngineConfig) -> None:
    """Read the keys of the handoff before the model is loaded, as the engine will.

    Raises:
        ConfigError: they cannot be read.
    """
    folder = config.handoff.kv_transfer_curve_keys
    if folder is None or not config.topic.hands_over:
        return
    try:
        load_member_keys(Path(folder).expanduser())
    except ConfigError as error:
        raise ConfigError(f"kv_transfer_curve_keys: {error}") from None


def join_topic(config: TopicConfig) -> BrokerTopicClient:
    """A frontend's end of the topic, in the running event loop."""
    terms = Terms(
        ttl_s=config.scheduler_ttl,
        max_waiting=max(config.scheduler_max_size, 0),
        needs_worker=config.scheduler_without_worker == "reject",
        decode_prefill_tokens=config.splitwise_decode_prefill_tokens,
    )
    logger.info("topic %s at %s", config.scheduler_topic, config.address.url)
    return BrokerTopicClient(opener(config), terms, Timing(config.scheduler_lease))


@contextlib.asynccontextmanager
async def client_beside_engine(
    config: TopicConfig, link: TopicClient
) -> AsyncIterator[TopicClient]:
    """The client of a server that has an engine: the link to it, or the end of a shared topic.

    Args:
        config: says which topic.
        link: to the engine, which is ready.
    """
    if not config.is_shared:
        yield link
        return
    assert link.ready is not None
    client = join_topic(config)
    client.dispatch(link.ready)
    link.on_stats = client.dispatch
    link.on_death = client.engine_died
    if link.death is not None:
        client.engine_died(link.death)
    watcher = asyncio.create_task(watch_workers(client, has_engine=True))
    try:
        yield client
    finally:
        watcher.cancel()
        await asyncio.to_thread(client.close)
