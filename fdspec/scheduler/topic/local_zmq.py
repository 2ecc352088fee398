# SPDX-License-Identifier: Apache-2.0
"""The topic between two processes of one machine: a pair of ZMQ sockets on a private unix socket.

The frontend binds (`ZmqTopicClient`), the engine connects (`ZmqEngineTopic`). Neither side ever
blocks on sending: queues are unbounded, and the frontend bounds the requests in flight.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence

import zmq

from fdspec.core import Abort, Command, EngineDead, Submit, TokenEvent
from fdspec.scheduler.topic.client import TopicClient
from fdspec.scheduler.topic.codec import CodecError, decode, encode
from fdspec.scheduler.topic.messages import Status

_MAX_SOCKET_DIRECTORY = 80
_LINGER_MS = 1000


class ZmqEngineTopic:
    """The engine's end; implements `EngineTopic`. Used by one thread."""

    def __init__(self, endpoint: str) -> None:
        """Connect.

        Args:
            endpoint: what the client's `endpoint` says, `ipc://...`.
        """
        self._context = zmq.Context()
        self._socket = _open_socket(self._context)
        self._socket.connect(endpoint)

    def poll(self, limit: int, timeout_s: float) -> list[Command]:
        """Up to `limit` commands in order; waits up to timeout_s if there are none.

        Raises:
            CodecError: the peer sent something that is not a command.
        """
        commands: list[Command] = []
        if timeout_s > 0 and not self._has_arrived():
            self._socket.poll(int(timeout_s * 1000))
        # Asking costs a fifth of a receive that raises, and mostly nothing has arrived.
        while len(commands) < limit and self._has_arrived():
            commands.append(_decode_command(self._socket.recv(zmq.NOBLOCK)))
        return commands

    def emit(self, events: Sequence[TokenEvent]) -> None:
        """Send the events of one step in one message."""
        if events:
            self._socket.send(encode(tuple(events)), zmq.NOBLOCK)

    def publish(self, status: Status) -> None:
        """Send a status message."""
        self._socket.send(encode(status), zmq.NOBLOCK)

    def close(self) -> None:
        """Deliver what was sent (for at most a second), then close."""
        self._socket.close(linger=_LINGER_MS)
        self._context.term()

    def _has_arrived(self) -> bool:
        events = self._socket.getsockopt(zmq.EVENTS)
        assert isinstance(events, int)
        return bool(events & zmq.POLLIN)


class ZmqTopicClient(TopicClient):
    """The frontend's end: binds a socket in a directory that only this user can enter.

    Attributes:
        endpoint: address for `ZmqEngineTopic`.
    """

    def __init__(self) -> None:
        """Bind and listen in the running event loop."""
        super().__init__()
        self._directory = _private_directory()
        self.endpoint = f"ipc://{self._directory}/topic"
        self._context = zmq.Context()
        self._socket = _open_socket(self._context)
        self._socket.bind(self.endpoint)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._drain)

    def close(self) -> None:
        """Stop listening and remove the socket's directory. Idempotent."""
        if self._socket.closed:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close(linger=0)
        self._context.term()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _send(self, command: Command) -> None:
        try:
            self._socket.send(encode(command), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if isinstance(command, Abort):
                return
            raise EngineDead("the engine process does not take requests") from error
        # The descriptor signals only changes, and sending may have consumed one.
        self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        while not self._socket.closed:
            try:
                message = decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            except CodecError as error:
                self.engine_died(str(error))
                return
            if not isinstance(message, Submit | Abort):
                self.dispatch(message)


def _open_socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    return socket


def _decode_command(frame: bytes) -> Command:
    message = decode(frame)
    if not isinstance(message, Submit | Abort):
        raise CodecError(f"{type(message).__name__} is not a command")
    return message


def _private_directory() -> str:
    """A new directory with mode 0700, short enough for a unix socket's path (about 107 bytes)."""
    short = len(tempfile.gettempdir()) <= _MAX_SOCKET_DIRECTORY
    return tempfile.mkdtemp(prefix="fdspec-", dir=None if short else "/tmp")
