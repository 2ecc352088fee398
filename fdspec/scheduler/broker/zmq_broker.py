# SPDX-License-Identifier: Apache-2.0
"""A member's connection to a ZMQ broker (`zmq_server.py`): a DEALER socket, one call at a time."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from fdspec.config.broker_address import BrokerAddress
from fdspec.scheduler.broker.curve_keys import load_member_keys
from fdspec.scheduler.broker.interface import (
    MAX_WAIT_S,
    BrokerRefused,
    BrokerUnavailable,
    check_payload,
)
from fdspec.scheduler.broker.values import (
    Collected,
    Emission,
    EmitOutcome,
    Lease,
    LeaseRef,
    LeaseState,
    Submission,
    SubmitOutcome,
    Timing,
    TopicStats,
    WorkerCard,
)
from fdspec.scheduler.broker.wire import (
    MAX_MESSAGE_BYTES,
    CollectCall,
    LeaseCall,
    NackCall,
    RenewCall,
    WireError,
    decode_answer,
    encode_call,
    number_of,
)

_ANSWER_S = 5.0
_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class ZmqBroker:
    """One member's connection; implements `Broker`.

    Args:
        address: of the broker, with the keys if it wants any.
        topic: name of the topic, already checked.
        timing: how long this member may be silent.
        connect_s: how long a call tries to reach the broker.

    Raises:
        ConfigError: the keys cannot be read.
    """

    def __init__(
        self, address: BrokerAddress, topic: str, timing: Timing, *, connect_s: float
    ) -> None:
        self._address = address
        self._topic = topic
        self._timing = timing
        self._connect_s = connect_s
        folder = address.curve_keys
        self._keys = None if folder is None else load_member_keys(folder)
        self._numbers = itertools.count(1)
        self._socket: zmq.Socket[bytes] | None = None

    def submit(self, submission: Submission) -> SubmitOutcome:
        """See `Broker.submit`."""
        check_payload(submission.payload)
        outcome: SubmitOutcome = self._call("submit", submission)
        return outcome

    def lease(self, worker: WorkerCard, num_slots: int, wait_s: float = 0.0) -> list[Lease]:
        """See `Broker.lease`."""
        wait_s = min(wait_s, MAX_WAIT_S) if num_slots > 0 else 0.0
        leases: list[Lease] = self._call(
            "lease", LeaseCall(worker, num_slots, wait_s, self._timing), wait_s
        )
        return leases

    def renew(self, worker: WorkerCard, leases: Sequence[LeaseRef]) -> list[LeaseState]:
        """See `Broker.renew`."""
        states: list[LeaseState] = self._call(
            "renew", RenewCall(worker, tuple(leases), self._timing)
        )
        return states

    def emit(self, emissions: Sequence[Emission]) -> list[EmitOutcome]:
        """See `Broker.emit`."""
        for emission in emissions:
            check_payload(emission.payload)
            check_payload(emission.offer)
        outcomes: list[EmitOutcome] = self._call("emit", tuple(emissions))
        return outcomes

    def nack(self, leases: Sequence[LeaseRef], *, is_fault: bool = False) -> None:
        """See `Broker.nack`."""
        self._call("nack", NackCall(tuple(leases), is_fault))

    def leave(self, worker: WorkerCard) -> None:
        """See `Broker.leave`."""
        self._call("leave", worker)

    def cancel(self, request_id: str) -> None:
        """See `Broker.cancel`."""
        self._call("cancel", request_id)

    def stats(self) -> TopicStats:
        """See `Broker.stats`."""
        stats: TopicStats = self._call("stats", None)
        return stats

    def collect(self, frontend: str, cursor: str, wait_s: float = 0.0) -> Collected:
        """See `Broker.collect`."""
        wait_s = min(wait_s, MAX_WAIT_S)
        collected: Collected = self._call(
            "collect", CollectCall(frontend, cursor, wait_s, self._timing), wait_s
        )
        return collected

    def close(self) -> None:
        """Free the connection. Idempotent."""
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(linger=0)
            self._socket = None

    def _call(self, verb: str, arguments: object, wait_s: float = 0.0) -> Any:
        number = next(self._numbers)
        try:
            socket = self._connected()
            socket.send_multipart(encode_call(number, verb, self._topic, arguments))
            frames = self._receive(socket, number, wait_s + _ANSWER_S)
            return decode_answer(verb, frames)
        except WireError as error:
            raise BrokerRefused(f"{self._address.url}: {error}") from None
        except zmq.ZMQError as error:
            self.close()
            raise BrokerUnavailable(f"{self._address.url}: {error}") from None

    def _receive(self, socket: zmq.Socket[bytes], number: int, timeout_s: float) -> list[bytes]:
        """The answer to a call; older ones, which came too late, are dropped."""
        end_s = time.monotonic() + timeout_s
        while socket.poll(math.ceil(max(end_s - time.monotonic(), 0) * 1000)):
            frames = socket.recv_multipart()
            if number_of(frames) == number:
                return frames
        # What is still under way must not be taken for the answer to a later call.
        self.close()
        raise BrokerUnavailable(f"{self._address.url}: no answer within {timeout_s:g} s")

    def _connected(self) -> zmq.Socket[bytes]:
        """A socket whose peer has accepted us."""
        if self._socket is None:
            self._socket = self._open()
        if self._socket.poll(math.ceil(self._connect_s * 1000), zmq.POLLOUT):
            return self._socket
        refused = self._handshake_failed(self._socket)
        self.close()
        if refused:
            raise BrokerRefused(
                f"{self._address.url}: the broker does not accept our keys; check "
                "scheduler_curve_keys"
            )
        raise BrokerUnavailable(f"{self._address.url}: nobody accepts connections there")

    def _open(self) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        socket.linger = 0
        # Send only over connections that exist, so that nothing is kept for a later broker.
        socket.immediate = True
        socket.ipv6 = "[" in self._address.url
        socket.maxmsgsize = MAX_MESSAGE_BYTES
        socket.reconnect_ivl = 50
        socket.reconnect_ivl_max = 1000
        if self._keys is not None:
            socket.curve_publickey = self._keys.public
            socket.curve_secretkey = self._keys.secret
            socket.curve_serverkey = self._keys.broker
        socket.get_monitor_socket(_HANDSHAKE_FAILED)
        socket.connect(self._address.url.removeprefix("zmq+"))
        return socket

    def _handshake_failed(self, socket: zmq.Socket[bytes]) -> bool:
        monitor = socket.get_monitor_socket()
        while monitor.poll(0):
            if recv_monitor_message(monitor)["event"] & _HANDSHAKE_FAILED:
                return True
        return False
