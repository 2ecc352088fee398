# SPDX-License-Identifier: Apache-2.0
"""A worker's end of a topic with a broker: requests are leased, tokens emitted, leases renewed.

All talk with the broker happens in two threads of its own, so that no step of the engine waits for
it: one leases as many requests as there are free slots, the other emits and renews.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from fdspec.core import Abort, Command, FinishReason, Submit, TokenEvent
from fdspec.scheduler.broker.interface import (
    MAX_PAYLOAD_BYTES,
    Broker,
    BrokerError,
    BrokerUnavailable,
)
from fdspec.scheduler.broker.values import (
    Emission,
    EmitOutcome,
    Lease,
    LeaseRef,
    LeaseState,
    Timing,
    WorkerCard,
)
from fdspec.scheduler.topic.codec import CodecError, decode, encode
from fdspec.scheduler.topic.held_requests import HeldRequests
from fdspec.scheduler.topic.interface import EngineTopic
from fdspec.scheduler.topic.messages import EngineStats, Fatal, Ready, Status
from fdspec.scheduler.topic.same_model import check_same_model
from fdspec.scheduler.topic.trouble import Trouble
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)

_LEASE_WAIT_S = 0.5
_RETRY_S = 0.5
_FAREWELL_S = 3.0
# Share of the KV blocks.
_FEW_BLOCKS = 0.1
_MAX_EVENTS = 1024
# An engine that does not come back from a step for so long gives its requests away.
_MAX_STEP_S = 120.0


class BrokerEngineTopic:
    """The engine's end; implements `EngineTopic`. `poll`, `emit`, `publish` are for one thread.

    Args:
        open_broker: a connection to the broker, for one thread each time.
        card: what this worker is; load and details are filled in.
        timing: how long it may be silent.
        server: link to the server that started this engine, which hears how it stands.

    Raises:
        BrokerRefused: the broker will not have us.
    """

    def __init__(
        self,
        open_broker: Callable[[], Broker],
        card: WorkerCard,
        timing: Timing,
        *,
        server: EngineTopic | None = None,
    ) -> None:
        self._open_broker = open_broker
        self._card = card
        self._timing = timing
        self._server = server
        lock = threading.Lock()
        self._has_commands = threading.Condition(lock)
        self._has_events = threading.Condition(lock)
        self._has_room = threading.Condition(lock)
        self._lock = lock
        self._commands: deque[Command] = deque()
        self._outgoing: deque[TokenEvent] = deque()
        self._held = HeldRequests(card.num_slots)
        self._threads: list[threading.Thread] = []
        self._is_leasing = True
        self._is_open = True
        self._is_faulty = False
        self._last_poll_s = time.monotonic()

    @property
    def num_held(self) -> int:
        """Requests that this worker holds. Does not modify."""
        return len(self._held.refs())

    def poll(self, limit: int, timeout_s: float) -> list[Command]:
        """Up to `limit` commands in order; waits up to timeout_s if there are none."""
        if self._server is not None:
            self._server.poll(0, 0.0)
        with self._lock:
            self._last_poll_s = time.monotonic()
            if not self._commands and timeout_s > 0:
                self._has_commands.wait_for(lambda: bool(self._commands), timeout_s)
            count = min(limit, len(self._commands))
            return [self._commands.popleft() for _ in range(count)]

    def emit(self, events: Sequence[TokenEvent]) -> None:
        """Leave the events of one step to the sending thread."""
        if events:
            has_room = self._held.note_ends(events)
            with self._lock:
                self._outgoing += events
                self._has_events.notify()
                if has_room:
                    self._has_room.notify()

    def publish(self, status: Status) -> None:
        """Tell the server, and the topic with the next renewal. Ready starts the work."""
        if isinstance(status, Ready):
            status = replace(status, worker_id=self._card.worker_id)
        if self._server is not None:
            self._server.publish(status)
        if isinstance(status, EngineStats):
            self._card = replace(
                self._card,
                num_running=status.num_running,
                num_waiting=status.num_waiting,
                num_blocks=status.num_blocks,
                num_free_blocks=status.num_free_blocks,
            )
        elif isinstance(status, Fatal):
            self._is_faulty = True
        elif isinstance(status, Ready) and not self._threads:
            self._start(status)

    def check_model(self, ready: Ready) -> None:
        """Compare with the workers that are there: any of them may go on with our requests.

        Raises:
            ConfigError: they serve something else; says what differs.
            BrokerRefused: the broker will not have us.
        """
        broker = self._open_broker()
        try:
            for worker in broker.stats().workers:
                check_same_model(ready, worker.card)
        except BrokerUnavailable as error:
            logger.warning("the broker cannot be reached yet: %s", error)
        finally:
            broker.close()

    def stop_leasing(self) -> None:
        """Take no more requests; those that are held go on. Idempotent."""
        with self._lock:
            self._is_leasing = False
            self._has_room.notify()

    def close(self) -> None:
        """Deliver what was sent, give back what is held, and free the connections. Idempotent."""
        with self._lock:
            self._is_open = self._is_leasing = False
            self._has_room.notify()
            self._has_events.notify()
        for thread in self._threads:
            thread.join(_LEASE_WAIT_S + 2 * _FAREWELL_S)
        if self._server is not None:
            self._server.close()

    def _start(self, ready: Ready) -> None:
        self._card = replace(
            self._card,
            num_slots=ready.max_num_seqs,
            details=encode(ready),
            endpoints=ready.kv_endpoints,
        )
        self._held = HeldRequests(ready.max_num_seqs)
        for name, work in (("leases", self._lease_all), ("emissions", self._send_all)):
            thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, work: Callable[[Broker], None]) -> None:
        broker = self._open_broker()
        try:
            work(broker)
        finally:
            broker.close()

    # -- leasing ----------------------------------------------------------------------------------

    def _lease_all(self, broker: Broker) -> None:
        trouble = Trouble()
        while self._is_leasing:
            num_slots = self._room()
            if num_slots == 0:
                with self._lock:
                    self._has_room.wait(self._timing.renew_interval_s)
                continue
            try:
                leases = broker.lease(self._card, num_slots, _LEASE_WAIT_S)
                if not self._is_leasing:
                    broker.nack([lease.ref for lease in leases])
                    return
                bad = [lease for lease in leases if not self._take(lease)]
                if bad:
                    broker.nack([lease.ref for lease in bad], is_fault=True)
                trouble.end()
            except BrokerError as error:
                trouble.note(error)
                with self._lock:
                    self._has_room.wait_for(lambda: not self._is_leasing, _RETRY_S)

    def _room(self) -> int:
        """Sequences to lease; none while some of ours wait and blocks are few."""
        card = self._card
        if card.num_waiting > 0 and card.num_free_blocks < _FEW_BLOCKS * card.num_blocks:
            return 0
        return self._held.num_free_slots()

    def _take(self, lease: Lease) -> bool:
        """Hand a request to the engine; False if it cannot be read."""
        try:
            submit = decode(lease.payload)
        except CodecError as error:
            logger.error("request %r cannot be read: %s", lease.ref.request_id, error)
            return False
        if not isinstance(submit, Submit):
            logger.error("%r is not a request", lease.ref.request_id)
            return False
        emitted = lease.emitted if any(tokens != () for tokens in lease.emitted) else ()
        offers = lease.offers if any(lease.offers) else ()
        if emitted and not offers:
            logger.info("going on with a request after %s tokens", _counts(emitted))
        self._held.add(lease)
        self._command(replace(submit, request_id=lease.ref.epoch, emitted=emitted, offers=offers))
        return True

    # -- emitting and renewing --------------------------------------------------------------------

    def _send_all(self, broker: Broker) -> None:
        trouble = Trouble()
        next_renewal_s = 0.0
        while self._is_open or self._outgoing:
            if time.monotonic() < next_renewal_s and not self._outgoing:
                with self._lock:
                    if self._is_open and not self._outgoing:
                        self._has_events.wait(max(next_renewal_s - time.monotonic(), 0.0))
            try:
                self._send_events(broker)
                if time.monotonic() >= next_renewal_s:
                    self._renew(broker)
                    next_renewal_s = time.monotonic() + self._timing.renew_interval_s
                trouble.end()
            except BrokerError as error:
                trouble.note(error)
                if not self._is_open and trouble.age_s > _FAREWELL_S:
                    break
                time.sleep(_RETRY_S)
        # It would say that the worker lives.
        self._threads[0].join(_FAREWELL_S)
        try:
            broker.nack(self._held.refs(), is_fault=self._is_faulty)
            broker.leave(self._card)
        except BrokerError as error:
            logger.warning("requests are given back by their leases' end only: %s", error)

    def _send_events(self, broker: Broker) -> None:
        """Send what has come; it stays in the queue until the broker has answered."""
        with self._lock:
            events = list(self._outgoing)[:_MAX_EVENTS]
        emissions: list[Emission] = []
        num_bytes = num_taken = 0
        for event in events:
            ref = self._held.get(event.request_id)
            if ref is not None:
                emission = _emission(event, ref)
                num_bytes += len(emission.payload) + len(emission.offer)
                if emissions and num_bytes > MAX_PAYLOAD_BYTES:
                    break
                emissions.append(emission)
            num_taken += 1
        outcomes = broker.emit(emissions) if emissions else []
        with self._lock:
            for _ in range(num_taken):
                self._outgoing.popleft()
        for emission, outcome in zip(emissions, outcomes, strict=True):
            if outcome in (EmitOutcome.FENCED, EmitOutcome.CANCELLED):
                self._drop(emission.ref.epoch, outcome.value)
            elif emission.is_last or emission.offer:
                self._held.note_delivery(emission.ref.epoch, emission.choice)

    def _renew(self, broker: Broker) -> None:
        if time.monotonic() - self._last_poll_s > max(_MAX_STEP_S, self._timing.lease_s):
            logger.error("the engine has not come back from a step; leases are not renewed")
            return
        refs = self._held.refs()
        for ref, state in zip(refs, broker.renew(self._card, refs), strict=True):
            if state is not LeaseState.HELD:
                self._drop(ref.epoch, state.value)

    def _drop(self, epoch: str, why: str) -> None:
        """The request is not ours any more: the engine need not compute it."""
        if self._held.remove(epoch):
            if why != EmitOutcome.CANCELLED.value:
                logger.warning("a request is %s: others go on with it", why)
            self._command(Abort(epoch))

    def _command(self, command: Command) -> None:
        with self._lock:
            self._commands.append(command)
            self._has_commands.notify()


def _emission(event: TokenEvent, ref: LeaseRef) -> Emission:
    """An event as the topic carries it, under the request's own id."""
    is_last = event.finish not in (None, FinishReason.HANDOFF)
    offer = event.offer
    told = event._replace(request_id=ref.request_id, offer=b"")
    payload = b""
    if is_last or event.tokens:
        payload = encode((told if is_last else told._replace(finish=None),))
    if len(payload) > MAX_PAYLOAD_BYTES:
        error = (
            f"{len(payload)} bytes of logprobs are more than the scheduler topic carries "
            f"({MAX_PAYLOAD_BYTES}); ask for fewer logprobs or a shorter prompt"
        )
        event = TokenEvent(
            ref.request_id, event.choice, event.index, (), finish=FinishReason.ERROR, error=error
        )
        payload, is_last, offer = encode((event,)), True, b""
    return Emission(ref, event.choice, event.index, event.tokens, is_last, payload, offer)


def _counts(emitted: Sequence[tuple[int, ...] | None]) -> str:
    return " + ".join("all" if tokens is None else str(len(tokens)) for tokens in emitted)
