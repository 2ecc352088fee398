# SPDX-License-Identifier: Apache-2.0
"""A launch's life: sockets, broker, servers; those that end are started again; then all end.

Frontends end before the servers that compute for them, so that running requests can finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Sequence

from fdspec.config import EngineConfig
from fdspec.config.launch import LaunchPlan, ServerPlan
from fdspec.core import FdspecError
from fdspec.entrypoints.launch.kept_server import GaveUp, KeptServer
from fdspec.entrypoints.launch.server import SERVER_COMMAND
from fdspec.entrypoints.listener import bind_listener, url_of
from fdspec.entrypoints.own_broker import with_broker
from fdspec.entrypoints.stopping import Signals
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

_FAILED = 1
_BACKLOG = 2048


async def launch(plan: LaunchPlan, command: Sequence[str] = SERVER_COMMAND) -> int:
    """Run the servers until a signal, or until one of them cannot be started; the exit status.

    Args:
        plan: what to start.
        command: the program of a server; takes what `KeptServer` hands it.
    """
    with Signals() as signals, contextlib.ExitStack() as stack:
        try:
            listeners = _bind_all(plan, stack)
            first = stack.enter_context(with_broker(plan.servers[0].config))
        except FdspecError as error:
            logger.error("the launch could not start: %s", error)
            return _FAILED
        width = max(len(server.name) for server in plan.servers)
        servers = [
            KeptServer(
                server,
                _with_broker_of(first, server.config),
                listener,
                supervision=plan.supervision,
                command=command,
                name_width=width,
            )
            for server, listener in zip(plan.servers, listeners, strict=True)
        ]
        return await _Launch(servers, listeners).run(signals)


class _Launch:
    """The servers, together."""

    def __init__(self, servers: Sequence[KeptServer], listeners: Sequence[socket.socket]) -> None:
        self._servers = servers
        self._listeners = listeners

    async def run(self, signals: Signals) -> int:
        keeping = [asyncio.create_task(server.keep()) for server in self._servers]
        announcing = asyncio.create_task(self._announce())
        stopping = asyncio.create_task(signals.stop.wait())
        await asyncio.wait((stopping, *keeping), return_when=asyncio.FIRST_COMPLETED)
        announcing.cancel()
        is_well = True
        for failed in (task for task in keeping if task.done()):
            is_well = False
            _log_failure(failed.exception())
        is_well &= await self._end(signals.hurry)
        await asyncio.gather(*keeping, return_exceptions=True)
        stopping.cancel()
        if is_well:
            logger.info("stopped")
        return 0 if is_well else _FAILED

    async def _announce(self) -> None:
        await asyncio.gather(*(server.ready.wait() for server in self._servers))
        pairs = zip(self._servers, self._listeners, strict=True)
        public = next(listener for server, listener in pairs if server.plan.is_public)
        # The servers do so in a moment; whoever reads the line may connect at once.
        public.listen(_BACKLOG)
        logger.info("all %d servers are ready: %s", len(self._servers), url_of(public))

    async def _end(self, hurry: asyncio.Event) -> bool:
        """End frontends, then the others; False if one had to be killed."""
        logger.info("stopping; a second signal hurries")
        for server in self._servers:
            server.let_end()
        frontends = [s for s in self._servers if s.plan.role == "frontend"]
        workers = [s for s in self._servers if s.plan.role != "frontend"]
        outcomes: list[bool] = []
        for group in (frontends, workers):
            outcomes += await asyncio.gather(*(server.end(hurry) for server in group))
        return all(outcomes)


def _log_failure(error: BaseException | None) -> None:
    if isinstance(error, GaveUp):
        first, *others = str(error).splitlines()
        logger.error("%s, so the launch ends", first)
        for line in others:
            logger.error("  %s", line)
    elif error is not None:
        logger.error("the launch failed", exc_info=error)


def _bind_all(plan: LaunchPlan, stack: contextlib.ExitStack) -> list[socket.socket]:
    """A socket for each server; public ones share one.

    Raises:
        FdspecError: an address cannot be had.
    """
    shared: socket.socket | None = None
    listeners = []
    for server in plan.servers:
        if shared is not None and server.is_public:
            listeners.append(shared)
            continue
        listener = _bind(server, stack)
        listeners.append(listener)
        if server.is_public:
            shared = listener
    return listeners


def _bind(server: ServerPlan, stack: contextlib.ExitStack) -> socket.socket:
    place = server.config.server
    try:
        return stack.enter_context(bind_listener(place.host, place.port))
    except OSError as error:
        raise FdspecError(
            f"{server.name} cannot listen on {place.host}:{place.port}: {error.strerror}"
        ) from None


def _with_broker_of(first: EngineConfig, config: EngineConfig) -> EngineConfig:
    """The configuration with the address of the launch's broker."""
    topic = dataclasses.replace(config.topic, scheduler_url=first.topic.scheduler_url)
    return dataclasses.replace(config, topic=topic)
