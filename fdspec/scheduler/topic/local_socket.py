# SPDX-License-Identifier: Apache-2.0
"""The topic between two processes of one machine, over a private unix socket.

The frontend listens (`LocalTopicClient`), one engine connects (`LocalEngineTopic`). Neither side
ever blocks on sending: queues are unbounded, and the frontend bounds the requests in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import shutil
import socket
from collections import deque
from collections.abc import Sequence

from fdspec.core import Abort, Command, EngineDead, TokenEvent
from fdspec.scheduler.topic.client import TopicClient
from fdspec.scheduler.topic.codec import CodecError, decode, encode
from fdspec.scheduler.topic.framed_socket import FramedSocket
from fdspec.scheduler.topic.messages import Status
from fdspec.utils.private_folder import make_private_folder

_LINGER_S = 1.0


class LocalEngineTopic:
    """The engine's end; implements `EngineTopic`. Used by one thread."""

    def __init__(self, endpoint: str) -> None:
        """Connect.

        Args:
            endpoint: what the client's `endpoint` says, the path of a socket.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(endpoint)
        self._socket = FramedSocket(connection)
        self._commands: deque[Command] = deque()
        self._poller = select.poll()
        self._waits_for = 0

    def poll(self, limit: int, timeout_s: float) -> list[Command]:
        """Up to `limit` commands in order; waits up to timeout_s if there are none.

        Raises:
            CodecError: the peer sent something that is not a command.
            ConnectionError: the frontend has gone.
        """
        if self._socket.has_unsent:
            self._socket.flush()
        if self._has_arrived(0.0 if self._commands else timeout_s):
            self._commands += map(_decode_command, self._socket.receive())
        count = min(limit, len(self._commands))
        return [self._commands.popleft() for _ in range(count)]

    def emit(self, events: Sequence[TokenEvent]) -> None:
        """Send the events of one step in one message."""
        if events:
            self._send(encode(tuple(events)))

    def publish(self, status: Status) -> None:
        """Send a status message."""
        self._send(encode(status))

    def close(self) -> None:
        """Deliver what was sent (for at most a second), then close."""
        self._socket.close(_LINGER_S)

    def _send(self, frame: bytes) -> None:
        # A frontend that has gone is noticed by the next poll.
        with contextlib.suppress(ConnectionError):
            self._socket.send(frame)

    def _has_arrived(self, timeout_s: float) -> bool:
        """Wait for something to read; what is kept is sent meanwhile as the peer takes it."""
        waits_for = select.POLLIN | (select.POLLOUT if self._socket.has_unsent else 0)
        if waits_for != self._waits_for:
            self._poller.register(self._socket, waits_for)
            self._waits_for = waits_for
        ready = self._poller.poll(timeout_s * 1000)
        return any(event & ~select.POLLOUT for _, event in ready)


class LocalTopicClient(TopicClient):
    """The frontend's end: listens in a directory that only this user can enter, for one engine.

    Attributes:
        endpoint: address for `LocalEngineTopic`.
    """

    def __init__(self) -> None:
        """Listen in the running event loop."""
        super().__init__()
        self._folder = make_private_folder()
        self.endpoint = str(self._folder / "topic")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.endpoint)
        self._listener.listen(1)
        self._listener.setblocking(False)
        self._connection: FramedSocket | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Stop listening and remove the socket's directory. Idempotent."""
        self._close_listener()
        if self._connection is not None and self._connection.fileno() >= 0:
            self._leave_loop(self._connection)
            self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._close_listener()
        self._connection = FramedSocket(connection)
        self._loop.add_reader(self._connection, self._drain)

    def _send(self, command: Command) -> None:
        try:
            if self._connection is None:
                raise ConnectionError("no engine has connected")
            self._connection.send(encode(command))
        except OSError as error:
            if isinstance(command, Abort):
                return
            raise EngineDead("the engine process does not take requests") from error
        if self._connection.has_unsent:
            self._loop.add_writer(self._connection, self._flush)

    def _flush(self) -> None:
        assert self._connection is not None
        try:
            self._connection.flush()
        except ConnectionError:
            self._leave_loop(self._connection)
            return
        if not self._connection.has_unsent:
            self._loop.remove_writer(self._connection)

    def _drain(self) -> None:
        assert self._connection is not None
        try:
            for frame in self._connection.receive():
                message = decode(frame)
                if not isinstance(message, Command):
                    self.dispatch(message)
        except ConnectionError:
            # Whoever watches the process says how it ended.
            self._leave_loop(self._connection)
        except CodecError as error:
            self._leave_loop(self._connection)
            self.engine_died(str(error))

    def _leave_loop(self, connection: FramedSocket) -> None:
        self._loop.remove_reader(connection)
        self._loop.remove_writer(connection)

    def _close_listener(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()


def _decode_command(frame: bytes) -> Command:
    message = decode(frame)
    if not isinstance(message, Command):
        raise CodecError(f"{type(message).__name__} is not a command")
    return message
