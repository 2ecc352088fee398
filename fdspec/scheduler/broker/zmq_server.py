# SPDX-License-Identifier: Apache-2.0
"""The ZMQ broker: `TopicBook`s behind one ROUTER socket, in one thread. Keeps nothing on disk.

Calls that may wait are parked, one for each member, and answered when there is something or their
time is over.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from fdspec.config.broker_address import BrokerAddress
from fdspec.core import ConfigError
from fdspec.scheduler.broker.book import TopicBook
from fdspec.scheduler.broker.curve_keys import load_broker_keys
from fdspec.scheduler.broker.embedded import is_answering
from fdspec.scheduler.broker.wire import (
    MAX_MESSAGE_BYTES,
    WireError,
    decode_call,
    encode_answer,
    encode_complaint,
)

_TICK_S = 0.1
_LOOPBACK = ("127.", "localhost", "[::1]")
_HEARTBEAT_MS = 1000
_HEARTBEAT_TIMEOUT_MS = 3000


@dataclass(frozen=True, slots=True)
class _Parked:
    """A call that waits for something."""

    number: int
    verb: str
    topic: str
    arguments: Any
    end_s: float


class ZmqServer:
    """A broker that has its address; `run` serves.

    Args:
        address: zmq+tcp or zmq+ipc; `curve_keys` is the broker's folder.

    Raises:
        ConfigError: the address cannot be taken, or would let everybody in.
    """

    def __init__(self, address: BrokerAddress) -> None:
        self._books: dict[str, TopicBook] = {}
        self._parked: dict[bytes, _Parked] = {}
        self._stopping = threading.Event()
        self._context = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self._socket = self._context.socket(zmq.ROUTER)
        try:
            self._bind(address)
        except BaseException:
            self.close()
            raise

    def run(self) -> None:
        """Serve until `stop`."""
        while not self._stopping.is_set():
            if self._socket.poll(math.ceil(self._wait_s() * 1000)):
                with contextlib.suppress(zmq.Again):
                    while True:
                        self._handle(self._socket.recv_multipart(zmq.NOBLOCK))
            self._serve_parked()

    def stop(self) -> None:
        """Make `run` return; from any thread or a signal handler."""
        self._stopping.set()

    def close(self) -> None:
        """Give the address back; after `run` has returned. Idempotent."""
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        self._socket.close(linger=100)
        self._context.term()

    def _bind(self, address: BrokerAddress) -> None:
        socket, path = self._socket, address.path
        socket.ipv6 = "[" in address.url
        socket.maxmsgsize = MAX_MESSAGE_BYTES
        socket.sndhwm = socket.rcvhwm = 10_000
        socket.heartbeat_ivl = _HEARTBEAT_MS
        socket.heartbeat_timeout = _HEARTBEAT_TIMEOUT_MS
        host = address.url.partition("://")[2]
        if path is None and address.curve_keys is None and not host.startswith(_LOOPBACK):
            raise ConfigError(
                f"{address.url} can be reached from other machines, so members must prove who they "
                "are: make keys (`python -m fdspec.entrypoints.broker make-keys FOLDER`) and give "
                "--curve-keys FOLDER/broker; or listen on 127.0.0.1"
            )
        if path is not None and is_answering(path):
            raise ConfigError(f"a broker is already listening on {path}")
        if address.curve_keys is not None:
            keys = load_broker_keys(address.curve_keys)
            self._authenticator = ThreadAuthenticator(self._context)
            self._authenticator.start()
            self._authenticator.configure_curve(domain="*", location=str(keys.allowed))
            socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
            socket.curve_server = True
        old_mask = os.umask(0o077)
        try:
            socket.bind(address.url.removeprefix("zmq+"))
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot listen on {address.url}: {error}") from None
        finally:
            os.umask(old_mask)

    def _handle(self, frames: list[bytes]) -> None:
        member, *call = frames
        try:
            number, verb, topic, arguments = decode_call(call)
        except WireError as error:
            self._send(member, encode_complaint(call[0] if call else b"", str(error)))
            return
        now_s = time.monotonic()
        end_s = now_s + getattr(arguments, "wait_s", 0.0)
        # A member has one call at a time: an older one is not waited for any more.
        self._parked.pop(member, None)
        parked = _Parked(number, verb, topic, arguments, end_s)
        if not self._answer(member, parked, now_s):
            self._parked[member] = parked

    def _serve_parked(self) -> None:
        now_s = time.monotonic()
        for member, parked in list(self._parked.items()):
            if self._answer(member, parked, now_s):
                del self._parked[member]

    def _answer(self, member: bytes, parked: _Parked, now_s: float) -> bool:
        """Answer a call, unless it finds nothing and may still wait."""
        book = self._books.setdefault(parked.topic, TopicBook())
        value = _VERBS[parked.verb](book, parked.arguments, now_s)
        if now_s < parked.end_s and not _is_enough(parked.verb, value):
            return False
        self._send(member, encode_answer(parked.number, value))
        return True

    def _send(self, member: bytes, frames: list[bytes]) -> None:
        # A member that has gone, or does not read, is not waited for.
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart([member, *frames], zmq.NOBLOCK)

    def _wait_s(self) -> float:
        if not self._parked:
            return _TICK_S
        first_end_s = min(parked.end_s for parked in self._parked.values())
        return min(max(first_end_s - time.monotonic(), 0.0), _TICK_S)


def _is_enough(verb: str, value: Any) -> bool:
    if verb == "lease":
        return bool(value)
    return bool(verb != "collect" or value.results or value.is_new)


_VERBS: dict[str, Callable[[TopicBook, Any, float], Any]] = {
    "submit": lambda book, submission, now_s: book.submit(submission, now_s),
    "lease": lambda book, call, now_s: book.lease(call.worker, call.num_slots, call.timing, now_s),
    "renew": lambda book, call, now_s: book.renew(call.worker, call.leases, call.timing, now_s),
    "emit": lambda book, emissions, now_s: book.emit(emissions, now_s),
    "nack": lambda book, call, now_s: book.nack(call.leases, call.is_fault, now_s),
    "leave": lambda book, worker, now_s: book.leave(worker, now_s),
    "cancel": lambda book, request_id, now_s: book.cancel(request_id, now_s),
    "stats": lambda book, _, now_s: book.stats(now_s),
    "collect": lambda book, call, now_s: book.collect(
        call.frontend, call.cursor, call.timing, now_s
    ),
}
