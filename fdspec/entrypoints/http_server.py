# SPDX-License-Identifier: Apache-2.0
"""Uvicorn around the application: a bound socket, our signals, our log, and an orderly end.

Knows nothing of the engine but its client; `server.py` decides when there is something to serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import uvicorn

from fdspec.config import EngineConfig, ServerConfig
from fdspec.entrypoints.listener import Door, url_of
from fdspec.entrypoints.openai.app import build_app
from fdspec.entrypoints.openai.frontend import Frontend, FrontendOptions
from fdspec.entrypoints.stopping import Signals
from fdspec.scheduler.topic import ShuttingDown, TopicClient
from fdspec.tokenizer import Tokenizer
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

# After the drain, running handlers get this long to tell their clients.
_FAREWELL_S = 2


def build_http_server(
    config: EngineConfig, client: TopicClient, tokenizer: Tokenizer, door: Door
) -> HttpServer:
    """A server around an engine that is ready.

    Raises:
        ConfigError: tokenizer and model do not belong together.
    """
    options = FrontendOptions(
        model_names=config.model.served_names,
        api_keys=config.server.api_key,
        max_concurrency=config.server.max_concurrency,
        max_logprobs=config.model.max_logprobs,
        metrics_prefix=config.server.metrics_prefix,
        seed=config.model.seed,
        trust_request_chat_template=config.server.trust_request_chat_template,
    )
    return HttpServer(config.server, Frontend(client, tokenizer, options), door)


class HttpServer:
    """Uvicorn on a bound socket; ends on a signal or with the engine."""

    def __init__(self, config: ServerConfig, frontend: Frontend, door: Door) -> None:
        self._drain_s = config.timeout_graceful_shutdown
        self._client = frontend.client
        self._door = door
        self._server = _Uvicorn(
            uvicorn.Config(
                build_app(frontend),
                log_config=None,
                log_level=config.uvicorn_log_level,
                lifespan="off",
                timeout_keep_alive=config.timeout_keep_alive,
                timeout_graceful_shutdown=self._drain_s + _FAREWELL_S,
            )
        )
        _share_log_handlers()

    async def run(self, signals: Signals) -> None:
        """Serve until a signal, or until the engine is gone; drains before it returns."""

        def stop_serving() -> None:
            self._server.should_exit = True

        self._client.on_death = lambda _: stop_serving()
        if self._client.death is not None:
            stop_serving()
        logger.info("serving on %s", url_of(self._door.listener))
        serving = asyncio.create_task(self._server.serve(sockets=[self._door.listener]))
        self._door.on_serving()
        stopping = asyncio.create_task(signals.stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stop_serving()
        farewell = asyncio.create_task(self._end_requests(signals.hurry))
        await serving
        farewell.cancel()
        stopping.cancel()

    async def _end_requests(self, hurry: asyncio.Event) -> None:
        """After the drain, end what is still running, each with an error of its own."""
        count = self._client.num_requests
        logger.info("stopping: %d running requests get %d s to finish", count, self._drain_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(hurry.wait(), self._drain_s)
        if self._client.num_requests:
            logger.warning("ending %d requests", self._client.num_requests)
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
