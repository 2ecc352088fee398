# SPDX-License-Identifier: Apache-2.0
"""The asyncio side of a topic: submits commands and routes each request's events to its stream.

Owned by the frontend's event loop; nothing here may be called from another thread. Back ends only
add how a command leaves and how messages arrive (`_send`, and calls of `dispatch`).
"""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence

from fdspec.core import Abort, ClearCache, Command, EngineDead, FdspecError, Submit, TokenEvent
from fdspec.scheduler.broker.values import QUEUES, Role, TopicStats, WorkerCard, WorkerState
from fdspec.scheduler.topic.in_process import InProcessTopic
from fdspec.scheduler.topic.messages import EngineMessage, EngineStats, Fatal, Ready


class OneWorkerOnly(FdspecError):
    """Something that a topic with several workers cannot do."""


class ShuttingDown(FdspecError):
    """The frontend ends, and takes its requests with it."""


class EventStream:
    """The events of some requests, merged in order; ends after the last event of every choice.

    Each item of an iteration is the list of all events that have arrived since the last one, so
    that a slow reader catches up in one go.
    """

    def __init__(self, commands: Sequence[Submit]) -> None:
        self._num_unfinished = {command.request_id: command.params.n for command in commands}
        self._pending: list[TokenEvent] = []
        self._error: FdspecError | None = None
        self._arrived = asyncio.Event()

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The requests whose events these are. Does not modify."""
        return tuple(self._num_unfinished)

    def unfinished_ids(self) -> list[str]:
        """Requests with a choice that has not had its last event, read or not."""
        return [request_id for request_id, count in self._num_unfinished.items() if count]

    def push(self, event: TokenEvent) -> None:
        """Add an event (called by the client that owns this stream)."""
        self._pending.append(event)
        if event.finish is not None:
            self._num_unfinished[event.request_id] -= 1
        self._arrived.set()

    def fail(self, error: FdspecError) -> None:
        """End the stream: after the events so far, iterating raises the error."""
        self._error = error
        self._arrived.set()

    async def __aiter__(self) -> AsyncIterator[list[TokenEvent]]:
        """Yield batches of events.

        Raises:
            EngineDead: the engine ended before the request did.
            ShuttingDown: the frontend ended it.
        """
        while True:
            if self._pending:
                batch, self._pending = self._pending, []
                yield batch
            elif not self.unfinished_ids():
                return
            elif self._error is not None:
                raise self._error
            else:
                self._arrived.clear()
                await self._arrived.wait()


class TopicClient(ABC):
    """Submits requests to one engine and hands out their event streams.

    Attributes:
        ready: what the engine said when it came up; None before.
        stats: the engine's latest statistics.
        death: why the engine is gone; None while it lives.
        trouble: why requests cannot get through now, though they may later; None if they can.
        has_engine: False if only workers of a shared topic compute.
        is_engine_silent: True while a shared topic takes this server's own engine for dead.
        missing_roles: of a shared topic: see `TopicStats.missing_roles`.
        on_stats: called with each EngineStats; replace it to watch.
        on_topic: called with the TopicStats of a shared topic; replace it to watch.
        on_death: called once with the reason when the engine is gone; replace it to watch.
    """

    def __init__(self) -> None:
        self.ready: Ready | None = None
        self.stats = EngineStats()
        self.death: str | None = None
        self.trouble: str | None = None
        self.has_engine = True
        self.is_engine_silent = False
        self.missing_roles: tuple[Role, ...] = ()
        self.on_stats: Callable[[EngineStats], None] = lambda _: None
        self.on_topic: Callable[[TopicStats], None] = lambda _: None
        self.on_death: Callable[[str], None] = lambda _: None
        self._streams: dict[str, EventStream] = {}
        self._clearings: dict[str, asyncio.Future[int]] = {}
        self._ready_or_dead = asyncio.Event()

    async def wait_ready(self) -> Ready:
        """Wait until the engine takes commands.

        Raises:
            EngineDead: it ended before.
        """
        await self._ready_or_dead.wait()
        if self.death is not None:
            raise EngineDead(self.death)
        assert self.ready is not None
        return self.ready

    @property
    def num_requests(self) -> int:
        """Requests submitted and not released. Does not modify."""
        return len(self._streams)

    async def submit(self, commands: Sequence[Submit]) -> EventStream:
        """Send requests whose events belong together; `release` the stream in every case.

        Raises:
            EngineDead: there is no engine to send them to.
        """
        if self.death is not None:
            raise EngineDead(self.death)
        stream = EventStream(commands)
        try:
            for command in commands:
                assert command.request_id not in self._streams, "request ids are unique"
                self._streams[command.request_id] = stream
                self._send(command)
        except EngineDead:
            self.release(stream)
            raise
        return stream

    async def clear_cache(self) -> int:
        """Empty the engine's prefix cache; returns how many blocks could be found in it.

        Raises:
            EngineDead: there is no engine, or it ends before it answers.
        """
        if self.death is not None:
            raise EngineDead(self.death)
        request_id = uuid.uuid4().hex
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._clearings[request_id] = answer
        try:
            self._send(ClearCache(request_id))
            return await answer
        finally:
            del self._clearings[request_id]

    async def topic_stats(self) -> TopicStats:
        """The topic now; this one has a single worker, the engine.

        Raises:
            BrokerError: a broker between us and the workers cannot be reached.
        """
        ready, stats = self.ready, self.stats
        card = WorkerCard(
            "engine",
            num_slots=0 if ready is None else ready.max_num_seqs,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_blocks=stats.num_blocks,
            num_free_blocks=stats.num_free_blocks,
        )
        workers = () if self.death is not None else (WorkerState(card, self.num_requests),)
        return TopicStats((0,) * len(QUEUES), self.num_requests, 1, 0, workers)

    def release(self, stream: EventStream) -> None:
        """Forget a stream; the engine is told to abort what has not ended. Idempotent."""
        unfinished = stream.unfinished_ids()
        for request_id in stream.request_ids:
            known = self._streams.pop(request_id, None) is not None
            if known and request_id in unfinished and self.death is None:
                self._send(Abort(request_id))

    def dispatch(self, message: EngineMessage) -> None:
        """Take a message of the engine; events of released streams are dropped."""
        if isinstance(message, tuple):
            for event in message:
                stream = self._streams.get(event.request_id)
                if stream is not None:
                    stream.push(event)
        elif isinstance(message, EngineStats):
            self.stats = message
            self.on_stats(message)
        elif isinstance(message, Ready):
            self.ready = message
            self._ready_or_dead.set()
        elif isinstance(message, Fatal):
            self.engine_died(message.message)
        elif message.request_id in self._clearings:
            self._clearings[message.request_id].set_result(message.num_blocks)

    def engine_died(self, reason: str) -> None:
        """Fail every stream; later calls change nothing."""
        if self.death is not None:
            return
        self.death = reason
        self._ready_or_dead.set()
        self.fail_streams(EngineDead(reason))
        for answer in self._clearings.values():
            answer.set_exception(EngineDead(reason))
        self.on_death(reason)

    def fail_streams(self, error: FdspecError) -> None:
        """End every stream with an error; their release tells a living engine to abort."""
        for stream in set(self._streams.values()):
            stream.fail(error)

    def close(self) -> None:  # noqa: B027 (a back end without resources has nothing to do)
        """Free the transport."""

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Hand a command to the engine; EngineDead if it is not there."""


class InProcessClient(TopicClient):
    """A client of an `InProcessTopic` whose engine runs in another thread of this process."""

    def __init__(self, topic: InProcessTopic) -> None:
        super().__init__()
        self._topic = topic
        loop = asyncio.get_running_loop()

        def hand_over(message: EngineMessage) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.dispatch, message)

        topic.listen(hand_over)

    def _send(self, command: Command) -> None:
        self._topic.send(command)
