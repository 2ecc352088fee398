# SPDX-License-Identifier: Apache-2.0
"""One server's life: bind, start the engine, serve, drain, stop; nothing is left behind.

Owns the order of things and the signals; the HTTP API is in `openai/`, the child in
`engine_process.py`. Called by `api_server.main`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import uvicorn

from fdspec.config import EngineConfig
from fdspec.core import CheckpointError, ConfigError, EngineDead
from fdspec.entrypoints.engine_process import ENGINE_COMMAND, EngineProcess
from fdspec.entrypoints.openai.app import build_app
from fdspec.entrypoints.openai.frontend import Frontend, FrontendOptions
from fdspec.entrypoints.template_file import read_chat_template
from fdspec.scheduler.topic import ShuttingDown, TopicClient, ZmqTopicClient
from fdspec.tokenizer import Tokenizer, load_tokenizer
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

_FAILED = 1
# After the drain, running handlers get this long to tell their clients.
_FAREWELL_S = 2
_ENGINE_END_S = 5.0

Result = TypeVar("Result")


class _StopRequested(Exception):
    """SIGTERM or SIGINT arrived."""


class _StartFailed(Exception):
    """The engine did not come up; the message says why."""


async def serve(config: EngineConfig, engine_command: Sequence[str] = ENGINE_COMMAND) -> int:
    """Run a server until a signal or until its engine ends; returns the exit status.

    Args:
        config: of server and engine.
        engine_command: the engine process; takes what `EngineProcess` hands it.
    """
    with _Signals() as signals, contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(bind_listener(config.server.host, config.server.port))
        except OSError as error:
            place = f"{config.server.host}:{config.server.port}"
            logger.error("cannot listen on %s: %s", place, error.strerror)
            return _FAILED
        client = ZmqTopicClient()
        stack.callback(client.close)
        engine = EngineProcess(engine_command)
        try:
            return await _serve_with_engine(config, engine, client, listener, signals)
        except _StopRequested:
            return 0
        except (_StartFailed, CheckpointError, ConfigError) as error:
            logger.error("the server could not start: %s", error)
            return _FAILED
        finally:
            await engine.stop()


async def _serve_with_engine(
    config: EngineConfig,
    engine: EngineProcess,
    client: ZmqTopicClient,
    listener: socket.socket,
    signals: _Signals,
) -> int:
    stop = signals.stop
    config = await _unless_stopped(asyncio.to_thread(_with_local_model, config), stop)
    await engine.start(config, client.endpoint)
    watcher = asyncio.create_task(_watch(engine, client))
    try:
        tokenizer = await _unless_stopped(asyncio.to_thread(_load_tokenizer, config), stop)
        await _wait_ready(config, client, stop)
        frontend = Frontend(client, tokenizer, _frontend_options(config))
        http = _HttpServer(config, frontend, listener)
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
        ready = await _unless_stopped(asyncio.wait_for(client.wait_ready(), limit_s), stop)
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
    path = Path(config.model.tokenizer or config.model.model).expanduser()
    return load_tokenizer(path, read_chat_template(config.model.chat_template))


def _frontend_options(config: EngineConfig) -> FrontendOptions:
    return FrontendOptions(
        model_names=config.model.served_names,
        api_keys=config.server.api_key,
        max_concurrency=config.server.max_concurrency,
        max_logprobs=config.model.max_logprobs,
        metrics_prefix=config.server.metrics_prefix,
        seed=config.model.seed,
        trust_request_chat_template=config.server.trust_request_chat_template,
    )


class _HttpServer:
    """Uvicorn on a bound socket; ends on a signal or with the engine."""

    def __init__(self, config: EngineConfig, frontend: Frontend, listener: socket.socket) -> None:
        self._drain_s = config.server.timeout_graceful_shutdown
        self._client = frontend.client
        self._listener = listener
        self._server = _Uvicorn(
            uvicorn.Config(
                build_app(frontend),
                log_config=None,
                log_level=config.server.uvicorn_log_level,
                lifespan="off",
                timeout_keep_alive=config.server.timeout_keep_alive,
                timeout_graceful_shutdown=self._drain_s + _FAREWELL_S,
            )
        )
        _share_log_handlers()

    async def run(self, signals: _Signals) -> None:
        """Serve until a signal, or until the engine is gone; drains before it returns."""

        def stop_serving() -> None:
            self._server.should_exit = True

        self._client.on_death = lambda _: stop_serving()
        if self._client.death is not None:
            stop_serving()
        host, port = self._listener.getsockname()[:2]
        logger.info("serving on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        stopping = asyncio.create_task(signals.stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stop_serving()
        farewell = asyncio.create_task(self._end_requests(signals.hurry))
        await serving
        farewell.cancel()
        stopping.cancel()

    async def _end_requests(self, hurry: asyncio.Event) -> None:
        """After the drain, end what is still running, each with an error of its own."""
        logger.info("stopping: running requests get %d s to finish", self._drain_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(hurry.wait(), self._drain_s)
        if self._client.num_requests:
            logger.warning("ending %d requests that are still running", self._client.num_requests)
            self._client.fail_streams(ShuttingDown("the server is shutting down"))


class _Uvicorn(uvicorn.Server):  # type: ignore[misc]
    """Uvicorn that leaves the signals to `serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _share_log_handlers() -> None:
    """Uvicorn's lines look like ours and go the same way."""
    for name in ("uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers[:] = logging.getLogger("fdspec").handlers


class _Signals:
    """SIGTERM and SIGINT: the first asks the server to stop, the second to hurry."""

    _NUMBERS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> _Signals:
        for number in self._NUMBERS:
            self._loop.add_signal_handler(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._NUMBERS:
            self._loop.remove_signal_handler(number)

    def _receive(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


async def _unless_stopped(work: Awaitable[Result], stop: asyncio.Event) -> Result:
    """The result of `work`.

    Raises:
        _StopRequested: `stop` was set first.
    """
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _StopRequested
        return task.result()
    finally:
        task.cancel()
        stopping.cancel()


@contextlib.contextmanager
def bind_listener(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that has its address and takes no connection yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay off only for sockets that say that they are TCP.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        yield listener
