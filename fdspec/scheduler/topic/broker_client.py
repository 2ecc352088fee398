# SPDX-License-Identifier: Apache-2.0
"""A frontend's end of a topic with a broker: requests go to whoever leases them.

Two threads talk with the broker, one collecting results, one sending; all else happens in the
frontend's event loop. A broker that is gone is waited for: streams only pause, unless their time is
over.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from fdspec.core import Abort, Command, EngineDead, FdspecError, Submit, TokenEvent
from fdspec.scheduler.broker.interface import Broker, BrokerError
from fdspec.scheduler.broker.values import (
    Collected,
    FailureCode,
    Result,
    SubmitOutcome,
    Timing,
    TopicStats,
)
from fdspec.scheduler.topic.client import EventStream, OneWorkerOnly, TopicClient
from fdspec.scheduler.topic.codec import CodecError, decode
from fdspec.scheduler.topic.sent_request import Arrival, SentRequest, Terms, new_request
from fdspec.scheduler.topic.trouble import Trouble
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

Answer = TypeVar("Answer")
_RETRY_S = 0.5
_COLLECT_WAIT_S = 0.5
_FAREWELL_S = 2.0
# The broker says first that a request has expired, if there is one.
_EXPIRY_GRACE_S = 5.0
_FAILURES = {
    FailureCode.EXPIRED: "the request was not finished within its time (scheduler_ttl)",
    FailureCode.DEAD_LETTER: "three workers in a row failed at this request without a new token",
}


class TopicBusy(FdspecError):
    """The queue is full: try again later."""


class NoWorker(FdspecError):
    """No worker is alive, and requests are not to wait for one."""


class _Job(NamedTuple):
    """A call of the sending thread; without a future it is repeated until it gets through."""

    act: Callable[[Broker], object]
    future: asyncio.Future[object] | None


class BrokerTopicClient(TopicClient):
    """Submits requests to a topic and hands out their event streams.

    Args:
        open_broker: a connection to the broker, for one thread each time.
        terms: conditions of every request.
        timing: how long this frontend may be silent.

    Attributes:
        frontend_id: our name on the topic, new for each client.
    """

    def __init__(self, open_broker: Callable[[], Broker], terms: Terms, timing: Timing) -> None:
        """Start to collect, in the running event loop."""
        super().__init__()
        self.frontend_id = uuid.uuid4().hex
        self._open_broker = open_broker
        self._terms = terms
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._sent: dict[str, SentRequest] = {}
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._is_open = True
        self._expiry = self._loop.call_later(1.0, self._expire)
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            for name, work in (("results", self._collect_all), ("requests", self._send_all))
        ]
        for thread in self._threads:
            thread.start()

    async def submit(self, commands: Sequence[Submit]) -> EventStream:
        """Send requests whose events belong together; `release` the stream in every case.

        Raises:
            TopicBusy: too many requests wait.
            NoWorker: nobody would take them.
            BrokerError: the broker cannot be reached.
            EngineDead: this server's own engine has ended.
        """
        if self.death is not None:
            raise EngineDead(self.death)
        stream = EventStream(commands)
        submissions = []
        for command in commands:
            assert command.request_id not in self._streams, "request ids are unique"
            self._streams[command.request_id] = stream
            sent = self._sent[command.request_id] = new_request(command, self._terms)
            submissions.append(sent.submission(self.frontend_id, self._terms))
        try:
            for submission in submissions:
                outcome = await self.ask(lambda broker, s=submission: broker.submit(s))  # type: ignore[misc]
                self._check(outcome)
        except BaseException:
            self.release(stream)
            raise
        return stream

    def release(self, stream: EventStream) -> None:
        """Forget a stream; what has not ended is cancelled. Idempotent."""
        super().release(stream)
        for request_id in stream.request_ids:
            self._sent.pop(request_id, None)

    async def ask(self, act: Callable[[Broker], Answer]) -> Answer:
        """The answer to a call, made in the sending thread.

        Raises:
            BrokerError: it did not get through.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._jobs.put(_Job(act, future))  # type: ignore[arg-type]
        return await future

    async def clear_cache(self) -> int:
        """Not here: a command reaches one worker, and each has a cache of its own."""
        raise OneWorkerOnly("each worker of a shared topic has a prefix cache of its own")

    async def topic_stats(self) -> TopicStats:
        """The topic now.

        Raises:
            BrokerError: the broker cannot be reached.
        """
        return await self.ask(lambda broker: broker.stats())

    def close(self) -> None:
        """Cancel what is left and stop the threads. Idempotent."""
        if self._is_open:
            for request_id in self._sent:
                self._durably(lambda broker, r=request_id: broker.cancel(r))  # type: ignore[misc]
            self._sent.clear()
            self._is_open = False
            self._expiry.cancel()
            self._jobs.put(None)
            for thread in self._threads:
                thread.join(_COLLECT_WAIT_S + _FAREWELL_S)

    def _send(self, command: Command) -> None:
        assert isinstance(command, Abort), "requests are submitted with an answer"
        if self._is_open:
            request_id = command.request_id
            self._durably(lambda broker: broker.cancel(request_id))

    def _durably(self, act: Callable[[Broker], object]) -> None:
        self._jobs.put(_Job(act, None))

    def _check(self, outcome: SubmitOutcome) -> None:
        if outcome is SubmitOutcome.BUSY:
            raise TopicBusy(
                f"{self._terms.max_waiting} requests are waiting already (scheduler_max_size); "
                "try again later"
            )
        if outcome is SubmitOutcome.NO_WORKER:
            raise NoWorker(
                "no worker is alive on this topic that would take the request to its end (a mixed "
                "one, or one of prefill and one of decode); try again later"
            )

    # -- in the event loop ------------------------------------------------------------------------

    def _take(self, collected: Collected, is_lost: bool) -> None:
        """Hand results to their streams; is_lost: the broker has none of our requests any more."""
        self.trouble = None
        if is_lost and self._sent:
            logger.warning("the broker has lost %d requests; sending them again", len(self._sent))
            for sent in self._sent.values():
                self._send_again(sent)
        for result in collected.results:
            sent_before = self._sent.get(result.request_id)
            if sent_before is not None and sent_before.attempt == result.attempt:
                self._take_result(sent_before, result)

    def _take_result(self, sent: SentRequest, result: Result) -> None:
        if result.failure is not None:
            self._fail(sent, _FAILURES[result.failure])
            return
        assert result.payload is not None
        try:
            events = decode(result.payload)
        except CodecError as error:
            self._fail(sent, str(error))
            return
        assert isinstance(events, tuple)
        for event in events:
            match sent.take(event):
                case Arrival.NEXT:
                    self._push(event)
                case Arrival.GAP:
                    logger.warning("a part of an answer is missing; asking for it again")
                    self._send_again(sent)
                    return

    def _push(self, event: TokenEvent) -> None:
        stream = self._streams.get(event.request_id)
        if stream is not None:
            stream.push(event)
            if all(self._sent[event.request_id].ended):
                del self._sent[event.request_id]

    def _fail(self, sent: SentRequest, message: str) -> None:
        for event in sent.failure(message):
            sent.take(event)
            self._push(event)

    def _send_again(self, sent: SentRequest) -> None:
        sent.attempt += 1
        submission = sent.submission(self.frontend_id, self._terms)
        self._durably(lambda broker: broker.submit(submission))

    def _expire(self) -> None:
        """End what the broker, gone or slow, has not ended in time."""
        now_s = time.monotonic()
        for sent in [s for s in self._sent.values() if s.deadline_s + _EXPIRY_GRACE_S < now_s]:
            self._fail(sent, _FAILURES[FailureCode.EXPIRED])
        self._expiry = self._loop.call_later(1.0, self._expire)

    def _note_trouble(self, reason: str) -> None:
        self.trouble = reason

    # -- in the threads ---------------------------------------------------------------------------

    def _run(self, work: Callable[[Broker], None]) -> None:
        broker = self._open_broker()
        try:
            work(broker)
        finally:
            broker.close()

    def _collect_all(self, broker: Broker) -> None:
        trouble = Trouble()
        wait_s = min(_COLLECT_WAIT_S, self._timing.lease_s / 5)
        cursor = ""
        is_known = False
        while self._is_open:
            try:
                collected = broker.collect(self.frontend_id, cursor, wait_s)
            except BrokerError as error:
                trouble.note(error)
                self._in_loop(self._note_trouble, str(error))
                time.sleep(_RETRY_S)
                continue
            trouble.end()
            cursor = collected.cursor
            self._in_loop(self._take, collected, collected.is_new and is_known)
            is_known = True

    def _send_all(self, broker: Broker) -> None:
        unsent: deque[_Job] = deque()
        while True:
            try:
                job = self._jobs.get(timeout=_RETRY_S if unsent else None)
            except queue.Empty:
                job = None
            else:
                if job is None:
                    self._send_unsent(broker, unsent)
                    return
            if job is not None and job.future is not None:
                self._answer(broker, job, job.future)
            elif job is not None:
                unsent.append(job)
            self._send_unsent(broker, unsent)

    def _send_unsent(self, broker: Broker, unsent: deque[_Job]) -> None:
        try:
            while unsent:
                unsent[0].act(broker)
                unsent.popleft()
        except BrokerError as error:
            logger.debug("will be sent again: %s", error)

    def _answer(self, broker: Broker, job: _Job, future: asyncio.Future[object]) -> None:
        try:
            answer = job.act(broker)
        except Exception as error:
            self._in_loop(_settle, future, error)
        else:
            self._in_loop(_settle, future, answer)

    def _in_loop(self, act: Callable[..., object], *arguments: object) -> None:
        # The loop may have been closed by now, and then nobody waits for us.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *arguments)


def _settle(future: asyncio.Future[object], outcome: object) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
