# SPDX-License-Identifier: Apache-2.0
"""The life of a server without an engine (`splitwise_role: frontend`): API here, workers elsewhere.

Called by `server.py`, which owns the listener, the signals and an embedded broker.
"""

from __future__ import annotations

import asyncio

from fdspec.config import EngineConfig
from fdspec.entrypoints.listener import Door
from fdspec.entrypoints.local_model import load_server_tokenizer, with_local_model
from fdspec.entrypoints.shared_topic import join_topic
from fdspec.entrypoints.stopping import Signals, in_daemon_thread, unless_stopped
from fdspec.scheduler.topic import watch_workers
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)


async def serve_frontend(config: EngineConfig, door: Door, signals: Signals) -> int:
    """Serve from the first worker's arrival until a signal; returns the exit status.

    Raises:
        StopRequested: a signal came before.
        BrokerError, CheckpointError, ConfigError: the start failed.
    """
    stop = signals.stop
    load = in_daemon_thread(lambda: with_local_model(config, weights=False))
    config = await unless_stopped(load, stop)
    tokenizer = await unless_stopped(in_daemon_thread(lambda: load_server_tokenizer(config)), stop)
    from fdspec.entrypoints.http_server import build_http_server

    client = join_topic(config.topic)
    watcher = asyncio.create_task(watch_workers(client, has_engine=False))
    ready = asyncio.create_task(client.wait_ready())
    try:
        either = asyncio.wait((ready, watcher), return_when=asyncio.FIRST_COMPLETED)
        await unless_stopped(either, stop)
        if watcher.done():
            watcher.result()
        await build_http_server(config, client, tokenizer, door).run(signals)
    finally:
        watcher.cancel()
        ready.cancel()
        await asyncio.to_thread(client.close)
    logger.info("stopped")
    return 0
