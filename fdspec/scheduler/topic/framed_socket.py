# SPDX-License-Identifier: Apache-2.0
"""A stream socket that carries frames: [length u32, little-endian][that many bytes].

Owns the bytes of frames that are not whole yet, on their way in or out. Never blocks but in
`close`. No thread of its own: a frame costs each side one call of the system, which matters to an
engine whose every step sends one. `local_socket.py` uses it on both sides.
"""

from __future__ import annotations

import contextlib
import socket
import struct

_LENGTH = struct.Struct("<I")
_RECEIVE_BYTES = 256 * 1024


class FramedSocket:
    """Frames over a connected stream socket.

    Args:
        connection: connected; belongs to this object from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._incoming = bytearray()
        self._outgoing = bytearray()

    @property
    def has_unsent(self) -> bool:
        """True if `flush` has something to do. Does not modify."""
        return len(self._outgoing) > 0

    def fileno(self) -> int:
        """The socket's descriptor, to wait for; -1 when it is closed."""
        return self._socket.fileno()

    def send(self, payload: bytes) -> None:
        """Send a frame; what the peer does not take yet is kept for `flush`.

        Raises:
            ConnectionError: the peer has gone.
        """
        frame = _LENGTH.pack(len(payload)) + payload
        if self._outgoing:
            self._outgoing += frame
            return
        count = self._send_some(frame)
        if count < len(frame):
            self._outgoing += memoryview(frame)[count:]

    def flush(self) -> None:
        """Send what is kept, as far as the peer takes it.

        Raises:
            ConnectionError: the peer has gone.
        """
        while self._outgoing:
            count = self._send_some(self._outgoing)
            if count == 0:
                return
            del self._outgoing[:count]

    def receive(self) -> list[bytes]:
        """All whole frames that have arrived, in order.

        Raises:
            ConnectionError: the peer has gone, and there is no whole frame left.
        """
        is_closed = self._receive_all()
        frames = []
        start, end = 0, len(self._incoming)
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming, start)
            if end - start - _LENGTH.size < length:
                break
            start += _LENGTH.size
            frames.append(bytes(self._incoming[start : start + length]))
            start += length
        del self._incoming[:start]
        if is_closed and not frames:
            raise ConnectionResetError("the other side has closed the connection")
        return frames

    def close(self, linger_s: float = 0.0) -> None:
        """Close; what is kept gets up to linger_s to leave. Idempotent."""
        if self._outgoing and linger_s > 0:
            with contextlib.suppress(OSError):
                self._socket.settimeout(linger_s)
                self._socket.sendall(self._outgoing)
        self._outgoing.clear()
        self._socket.close()

    def _send_some(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def _receive_all(self) -> bool:
        """Take what has arrived; returns True if nothing more will."""
        while True:
            try:
                piece = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return False
            except ConnectionError:
                return True
            self._incoming += piece
            if len(piece) < _RECEIVE_BYTES:
                return not piece
