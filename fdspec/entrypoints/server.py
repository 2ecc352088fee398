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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fdspec.config import EngineConfig
from fdspec.core import CheckpointError, ConfigError, EngineDead
from fdspec.entrypoints.engine_process import ENGINE_COMMAND, EngineProcess
from fdspec.entrypoints.listener import bind_listener
from fdspec.entrypoints.stopping import Signals, StopRequested, in_daemon_thread, unless_stopped
from fdspec.entrypoints.template_file import read_chat_template
from fdspec.scheduler.topic import LocalTopicClient, TopicClient
from fdspec.utils.gguf_header import forget_gguf_headers
from fdspec.utils.logging import get_logger

if TYPE_CHECKING:
    from fdspec.tokenizer import Tokenizer

logger = get_logger(__name__)

_FAILED = 1
_ENGINE_END_S = 5.0


class _StartFailed(Exception):
    """The engine did not come up; the message says why."""


async def serve(config: EngineConfig, engine_command: Sequence[str] = ENGINE_COMMAND) -> int:
    """Run a server until a signal or until its engine ends; returns the exit status.

    Args:
        config: of server and engine.
        engine_command: the engine process; takes what `EngineProcess` hands it.
    """
    with Signals() as signals, contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(bind_listener(config.server.host, config.server.port))
        except OSError as error:
            place = f"{config.server.host}:{config.server.port}"
            logger.error("cannot listen on %s: %s", place, error.strerror)
            return _FAILED
        client = LocalTopicClient()
        stack.callback(client.close)
        engine = EngineProcess(engine_command)
        try:
            return await _serve_with_engine(config, engine, client, listener, signals)
        except StopRequested:
            return 0
        except (_StartFailed, CheckpointError, ConfigError) as error:
            logger.error("the server could not start: %s", error)
            return _FAILED
        finally:
            await engine.stop()


async def _serve_with_engine(
    config: EngineConfig,
    engine: EngineProcess,
    client: LocalTopicClient,
    listener: socket.socket,
    signals: Signals,
) -> int:
    stop = signals.stop
    config = await unless_stopped(in_daemon_thread(lambda: _with_local_model(config)), stop)
    await engine.start(config, client.endpoint)
    watcher = asyncio.create_task(_watch(engine, client))
    try:
        tokenizer = await unless_stopped(in_daemon_thread(lambda: _load_tokenizer(config)), stop)
        # Imported while the engine starts, which takes longer.
        from fdspec.entrypoints.http_server import build_http_server

        await _wait_ready(config, client, stop)
        http = build_http_server(config, client, tokenizer, listener)
        # What exists now stays: the collector need not look at it again while requests run.
        gc.collect()
        gc.freeze()
        await http.run(signals)
    finally:
        is_dead = client.death is not None
        if is_dead and not stop.is_set():
            # Its last words are worth waiting for, but not for ever.
            await asyncio.wait((watcher,), timeout=_ENGINE_END_S)
        watcher.cancel()
    if not is_dead:
        logger.info("stopped")
        return 0
    logger.error("the engine has ended, so the server ends: %s", client.death)
    for line in engine.last_lines():
        logger.error("engine: %s", line)
    return _FAILED


async def _watch(engine: EngineProcess, client: TopicClient) -> None:
    """Tell the client when the engine process has ended."""
    reason = await engine.wait()
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


def _with_local_model(config: EngineConfig) -> EngineConfig:
    """The configuration with hub ids replaced by paths, after a download."""
    names = [config.model.model, config.model.tokenizer or config.model.model]
    if all(Path(name).expanduser().exists() for name in names):
        return config
    # A local model, the usual case, does not need the engine's modules here.
    from fdspec.engine.build import with_local_model

    return with_local_model(config)


def _load_tokenizer(config: EngineConfig) -> Tokenizer:
    from fdspec.tokenizer import load_tokenizer

    path = Path(config.model.tokenizer or config.model.model).expanduser()
    tokenizer = load_tokenizer(path, read_chat_template(config.model.chat_template))
    forget_gguf_headers()
    return tokenizer
