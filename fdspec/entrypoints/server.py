# SPDX-License-Identifier: Apache-2.0
"""One server's life: bind, start the engine, serve, drain, stop; nothing is left behind.

Owns the order of things; the parts are `engine_process.py`, `http_server.py` and `openai/`. Called
by `api_server.main`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Callable, Sequence

from fdspec.config import EngineConfig
from fdspec.core import EngineDead, FdspecError
from fdspec.entrypoints.engine_process import ENGINE_COMMAND, EngineProcess
from fdspec.entrypoints.frontend_server import serve_frontend
from fdspec.entrypoints.listener import Door, bind_listener
from fdspec.entrypoints.local_model import load_server_tokenizer, with_local_model
from fdspec.entrypoints.own_broker import with_broker
from fdspec.entrypoints.shared_topic import check_broker, check_handoff_keys, client_beside_engine
from fdspec.entrypoints.stopping import Signals, StopRequested, in_daemon_thread, unless_stopped
from fdspec.scheduler.topic import LocalTopicClient, TopicClient
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

_FAILED = 1
_ENGINE_END_S = 5.0
# On a shared topic, the engine gives back what it holds.
_GIVE_BACK_S = 5.0


class _StartFailed(Exception):
    """The engine did not come up; the message says why."""


async def serve(
    config: EngineConfig,
    engine_command: Sequence[str] = ENGINE_COMMAND,
    listener: socket.socket | None = None,
    on_serving: Callable[[], None] = lambda: None,
) -> int:
    """Run a server until a signal or until its engine ends; returns the exit status.

    Args:
        config: of server and engine.
        engine_command: the engine process; takes what `EngineProcess` hands it.
        listener: a socket that is bound already, instead of the configuration's host and port.
        on_serving: called when requests are taken.
    """
    with Signals() as signals, contextlib.ExitStack() as stack:
        try:
            if listener is None:
                place = config.server
                listener = stack.enter_context(bind_listener(place.host, place.port))
        except OSError as error:
            address = f"{config.server.host}:{config.server.port}"
            logger.error("cannot listen on %s: %s", address, error.strerror)
            return _FAILED
        door = Door(listener, on_serving)
        engine = EngineProcess(engine_command)
        end_s = _ENGINE_END_S
        try:
            config = stack.enter_context(with_broker(config))
            check_handoff_keys(config)
            if config.topic.is_shared:
                end_s += config.server.timeout_graceful_shutdown + _GIVE_BACK_S
                check = in_daemon_thread(lambda: check_broker(config.topic))
                await unless_stopped(check, signals.stop)
            if config.topic.splitwise_role == "frontend":
                return await serve_frontend(config, door, signals)
            link = LocalTopicClient()
            stack.callback(link.close)
            return await _serve_with_engine(config, engine, link, door, signals)
        except StopRequested:
            return 0
        except (_StartFailed, FdspecError) as error:
            logger.error("the server could not start: %s", error)
            return _FAILED
        finally:
            await engine.stop(end_s)


async def _serve_with_engine(
    config: EngineConfig,
    engine: EngineProcess,
    link: LocalTopicClient,
    door: Door,
    signals: Signals,
) -> int:
    stop = signals.stop
    config = await unless_stopped(in_daemon_thread(lambda: with_local_model(config)), stop)
    await engine.start(config, link.endpoint)
    watcher = asyncio.create_task(_watch(engine, link, signals, config.topic.is_shared))
    try:
        load = in_daemon_thread(lambda: load_server_tokenizer(config))
        tokenizer = await unless_stopped(load, stop)
        # Imported while the engine starts, which takes longer.
        from fdspec.entrypoints.http_server import build_http_server

        await _wait_ready(config, link, stop)
        async with client_beside_engine(config.topic, link) as client:
            http = build_http_server(config, client, tokenizer, door)
            # What exists now stays: the collector need not look at it again while requests run.
            gc.collect()
            gc.freeze()
            await http.run(signals)
    finally:
        is_dead = link.death is not None
        if is_dead and not stop.is_set():
            # Its last words are worth waiting for, but not for ever.
            await asyncio.wait((watcher,), timeout=_ENGINE_END_S)
        watcher.cancel()
    if not is_dead:
        logger.info("stopped")
        return 0
    logger.error("the engine has ended, so the server ends: %s", link.death)
    for line in engine.last_lines():
        logger.error("engine: %s", line)
    return _FAILED


async def _watch(
    engine: EngineProcess, client: TopicClient, signals: Signals, is_shared: bool
) -> None:
    """Tell the client when the engine process has ended, unless it was to end.

    On a shared topic the engine drains while the server does: others go on with what it holds.
    """
    ending = asyncio.ensure_future(engine.wait())
    if is_shared:
        stopping = asyncio.ensure_future(signals.stop.wait())
        await asyncio.wait((ending, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if signals.stop.is_set():
            engine.ask_to_end()
            return
    reason = await ending
    # A last message of the engine says more than its exit status, and may still be on its way.
    await asyncio.sleep(0.1)
    client.engine_died(reason)


async def _wait_ready(config: EngineConfig, client: TopicClient, stop: asyncio.Event) -> None:
    limit_s = config.server.engine_start_timeout
    try:
        ready = await unless_stopped(asyncio.wait_for(client.wait_ready(), limit_s), stop)
    except TimeoutError:
        raise _StartFailed(
            f"the engine was not ready after {limit_s} s (engine_start_timeout)"
        ) from None
    except EngineDead as error:
        raise _StartFailed(str(error)) from None
    logger.info(
        "engine ready: %d tokens of context, %d KV blocks of %d tokens, speculation %s",
        ready.max_model_len,
        ready.num_blocks,
        ready.block_size,
        f"{ready.speculative_method} ({ready.num_speculative_tokens} tokens)"
        if ready.speculative_method
        else "off",
    )
