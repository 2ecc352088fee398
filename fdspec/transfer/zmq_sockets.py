# SPDX-License-Identifier: Apache-2.0
"""The two ends of a ZMQ conversation: a Listener (ROUTER) and its Dialers (DEALER).

Own sockets, keys and heartbeats; know nothing of what is said. Each end is used by one thread.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from fdspec.core.errors import ConfigError
from fdspec.transfer.errors import TransferError
from fdspec.transfer.transports.interface import ClientKeys, ServerKeys

_LOOPBACK = ("127.", "localhost", "[::1]")
_HEARTBEAT_MS = 1000
_HEARTBEAT_TIMEOUT_MS = 3000
_NOT_REACHED = zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_CLOSED
_NOT_ACCEPTED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class Listener:
    """A ROUTER socket that has its address.

    Args:
        address: `tcp://HOST:PORT`; `*` as the port takes a free one.
        keys: CURVE keys; without them only loopback addresses are possible.
        max_queued: messages that wait for one peer at most; more are dropped.
        max_message_bytes: larger ones end the connection that they come by.

    Attributes:
        url: where peers connect to.
        socket: for polling.

    Raises:
        ConfigError: the address cannot be taken, or would let everybody in.
    """

    def __init__(
        self, address: str, keys: ServerKeys | None, *, max_queued: int, max_message_bytes: int
    ) -> None:
        host = address.partition("://")[2]
        if keys is None and not host.startswith(_LOOPBACK):
            raise ConfigError(
                f"{address} can be reached from other machines, so peers must prove who they are: "
                "give CURVE keys, or listen on 127.0.0.1"
            )
        self._context = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.sndhwm = self.socket.rcvhwm = max_queued
        self.socket.maxmsgsize = max_message_bytes
        self.socket.heartbeat_ivl = _HEARTBEAT_MS
        self.socket.heartbeat_timeout = _HEARTBEAT_TIMEOUT_MS
        try:
            if keys is not None:
                self._authenticator = ThreadAuthenticator(self._context)
                self._authenticator.start()
                self._authenticator.configure_curve_callback("*", _AllowedKeys(keys.allowed))
                self.socket.curve_publickey, self.socket.curve_secretkey = keys.public, keys.secret
                self.socket.curve_server = True
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"cannot listen on {address}: {error}") from None
        self.url = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def wake_pair(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """Two ends of a pipe: what another thread sends wakes whoever polls the first."""
        inner: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        outer: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        inner.linger = outer.linger = 0
        inner.bind("inproc://wake")
        outer.connect("inproc://wake")
        return inner, outer

    def receive(self) -> list[bytes] | None:
        """A message with the peer's identity in front; None if there is none."""
        try:
            return self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def send(self, frames: Sequence[Any], *, copy: bool = True) -> None:
        """To the peer named by the first frame; one that is gone or does not read gets nothing."""
        with contextlib.suppress(zmq.ZMQError):
            self.socket.send_multipart(frames, zmq.NOBLOCK, copy=copy)

    def close(self) -> None:
        """Give the address back; sockets of `wake_pair` are closed before. Idempotent."""
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        self.socket.close()
        self._context.term()


class _AllowedKeys:
    """Answers pyzmq's question whether a peer may connect."""

    def __init__(self, allowed: frozenset[bytes]) -> None:
        self._allowed = allowed

    def callback(self, domain: str, key: bytes) -> bool:
        """True if the peer's key is known."""
        return key in self._allowed


class Dialer:
    """A DEALER socket that is connected to a Listener, and notices when it goes.

    Args:
        url: the listener's.
        keys: CURVE keys, or None.
        server_key: the listener's public key; empty without CURVE.
        max_queued: messages that wait at most in each direction.
        connect_s: how long to wait for the connection; who refuses it is not waited for.

    Raises:
        TransferError: nobody accepts us.
    """

    def __init__(
        self,
        url: str,
        keys: ClientKeys | None,
        server_key: bytes,
        *,
        max_queued: int,
        connect_s: float,
    ) -> None:
        self._url = url
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        # Send only over a connection that exists.
        self._socket.immediate = True
        self._socket.sndhwm = self._socket.rcvhwm = max_queued
        self._socket.heartbeat_ivl = _HEARTBEAT_MS
        self._socket.heartbeat_timeout = _HEARTBEAT_TIMEOUT_MS
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | _NOT_REACHED | _NOT_ACCEPTED
        )
        try:
            self._connect(keys, server_key, connect_s)
        except BaseException:
            self.close()
            raise

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message.

        Raises:
            TransferError: the peer is gone, or does not read.
        """
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise TransferError(f"{self._url}: {error}") from None

    def receive(self, timeout_s: float) -> list[zmq.Frame] | None:
        """The next message; None if none comes in time.

        Raises:
            TransferError: the peer is gone.
        """
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        ready = dict(poller.poll(math.ceil(max(timeout_s, 0.0) * 1000)))
        if self._socket in ready:
            return self._socket.recv_multipart(copy=False)
        while self._monitor.poll(0):
            if recv_monitor_message(self._monitor)["event"] & zmq.EVENT_DISCONNECTED:
                raise TransferError(f"{self._url}: the connection has ended")
        return None

    def close(self) -> None:
        """Free everything. Idempotent."""
        if not self._socket.closed:
            self._socket.disable_monitor()
            self._monitor.close()
            self._socket.close()
            self._context.term()

    def _connect(self, keys: ClientKeys | None, server_key: bytes, connect_s: float) -> None:
        socket = self._socket
        if server_key:
            if keys is None:
                raise TransferError(f"{self._url} wants CURVE keys, and there are none here")
            socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
            socket.curve_serverkey = server_key
        try:
            socket.connect(self._url)
        except zmq.ZMQError as error:
            raise TransferError(f"{self._url}: {error}") from None
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLOUT)
        poller.register(self._monitor, zmq.POLLIN)
        ready = dict(poller.poll(math.ceil(connect_s * 1000)))
        if socket in ready:
            return
        if self._monitor in ready and recv_monitor_message(self._monitor)["event"] & _NOT_ACCEPTED:
            raise TransferError(f"{self._url}: it does not accept our keys")
        raise TransferError(f"{self._url}: nobody accepts connections there")
