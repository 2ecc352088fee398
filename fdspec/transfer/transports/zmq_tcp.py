# SPDX-License-Identifier: Apache-2.0
"""Transport `zmq-tcp`: ask for blocks over a ZMQ socket. Always there, also between machines.

A reader asks for a few blocks of one layer at a time and has a few questions open, so that both
ends work at once and little memory is in flight. The source answers only for offers that it holds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np
import zmq

from fdspec.core.errors import ConfigError
from fdspec.core.kv_memory import KVMemory
from fdspec.transfer.checksums import Layers
from fdspec.transfer.errors import TransferError, WireError
from fdspec.transfer.offer import OfferRef, decode, encode
from fdspec.transfer.transports.copying import copy_runs, runs
from fdspec.transfer.transports.interface import (
    Capabilities,
    ClientKeys,
    Guard,
    Piece,
    Route,
    TransportOptions,
)
from fdspec.transfer.zmq_sockets import Dialer, Listener

_ANSWER_BYTES = 2 << 20
_NUM_OPEN = 3
# Far more than are open: ZMQ counts a message as waiting until it hears, late, that it was taken,
# and drops what is over the limit.
_MAX_QUEUED = 1024
_MAX_QUESTION_BYTES = 1 << 20
_CONNECT_S = 2.0
_POLL_MS = 200


class _Descriptor(msgspec.Struct, frozen=True):
    """Where the source listens, and its public key (empty without CURVE)."""

    url: str
    key: bytes


class _Question(msgspec.Struct, frozen=True):
    """Blocks of one layer: indices into the offer's, so that no other block can be named."""

    number: int
    ref: OfferRef
    piece: Piece


class ZmqTransport:
    """See `Transport`.

    Args:
        options: `listen` and the keys.
    """

    def __init__(self, options: TransportOptions) -> None:
        self._options = options
        has_keys = options.server_keys is not None or options.client_keys is not None
        self.capabilities = Capabilities(same_host_only=False, one_sided=False, encrypted=has_keys)
        self._layers: Layers = ()
        self._server: _BlockServer | None = None

    def register_pool(self, memory: KVMemory, guard: Guard | None) -> bytes:
        """See `Transport.register_pool`.

        Raises:
            ConfigError: the address cannot be taken, or would let everybody in.
        """
        self._layers = memory.layer_blocks()
        if guard is None:
            return b""
        if not self._options.listen.startswith("tcp://"):
            raise ConfigError(f"zmq-tcp listens on tcp://HOST:PORT, not on {self._options.listen}")
        keys = self._options.server_keys
        listener = Listener(
            self._options.listen,
            keys,
            max_queued=_MAX_QUEUED,
            max_message_bytes=_MAX_QUESTION_BYTES,
        )
        self._server = _BlockServer(listener, self._layers, guard)
        return msgspec.msgpack.encode(
            _Descriptor(listener.url, b"" if keys is None else keys.public)
        )

    def connect(self, descriptor: bytes) -> ZmqConnection:
        """See `Transport.connect`."""
        try:
            told = msgspec.msgpack.decode(descriptor, type=_Descriptor)
        except msgspec.MsgspecError as error:
            raise TransferError(f"zmq-tcp: malformed descriptor: {error}") from None
        return ZmqConnection(told, self._options.client_keys, self._layers)

    def close(self) -> None:
        """See `Transport.close`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._layers = ()


class _BlockServer:
    """Answers questions for blocks, in a thread."""

    def __init__(self, listener: Listener, layers: Layers, guard: Guard) -> None:
        self._listener = listener
        self._layers = layers
        self._guard = guard
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="kv-zmq", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            if self._listener.socket.poll(_POLL_MS):
                while (frames := self._listener.receive()) is not None:
                    self._answer(frames)

    def _answer(self, frames: list[bytes]) -> None:
        peer = frames[0]
        try:
            question = decode(b"".join(frames[1:]), _Question)
        except WireError as error:
            self._listener.send([peer, msgspec.msgpack.encode(-1), str(error).encode()])
            return
        header = msgspec.msgpack.encode(question.number)
        layer, start, end = question.piece
        blocks = self._guard(question.ref)
        if blocks is None:
            self._listener.send([peer, header, b"the source does not hold the blocks any more"])
        elif not (0 <= layer < len(self._layers) and 0 <= start < end <= len(blocks)):
            self._listener.send([peer, header, b"there is no such block in the offer"])
        else:
            # One copy, after which the block may change; ZMQ sends it without another.
            ids = list(blocks[start:end])
            data = [plane[ids] for plane in self._layers[layer]]
            self._listener.send([peer, header, b"", *data], copy=False)


class ZmqConnection:
    """Questions to one peer; see `Connection`."""

    def __init__(self, told: _Descriptor, keys: ClientKeys | None, layers: Layers) -> None:
        self._own = layers
        self._dialer = Dialer(
            told.url, keys, told.key, max_queued=_MAX_QUEUED, connect_s=_CONNECT_S
        )
        self._number = 0

    def read(self, route: Route, pieces: Sequence[Piece], timeout_s: float) -> None:
        """See `Connection.read`."""
        end_s = time.monotonic() + timeout_s
        waiting = deque(self._split(pieces))
        asked: deque[tuple[int, Piece]] = deque()
        while waiting or asked:
            while waiting and len(asked) < _NUM_OPEN:
                self._number += 1
                piece = waiting.popleft()
                self._dialer.send([encode(_Question(self._number, route.ref, piece))])
                asked.append((self._number, piece))
            frames = self._dialer.receive(end_s - time.monotonic())
            if frames is None:
                raise TransferError(f"zmq-tcp: not read within {timeout_s:g} s")
            number, piece = asked[0]
            # Answers to questions of an earlier read that was given up are dropped.
            if _number_of(frames) == number:
                asked.popleft()
                self._store(route, piece, frames)

    def quiesce(self, timeout_s: float) -> bool:
        """True: only `read` writes into own blocks."""
        return True

    def close(self) -> None:
        """See `Connection.close`."""
        self._dialer.close()

    def _split(self, pieces: Sequence[Piece]) -> list[Piece]:
        parts = []
        for layer, start, end in pieces:
            block_bytes = sum(plane.shape[1] for plane in self._own[layer])
            step = max(_ANSWER_BYTES // block_bytes, 1)
            parts += [Piece(layer, at, min(at + step, end)) for at in range(start, end, step)]
        return parts

    def _store(self, route: Route, piece: Piece, frames: list[zmq.Frame]) -> None:
        if len(frames[1]):
            raise TransferError(f"zmq-tcp: {frames[1].bytes.decode(errors='replace')}")
        layer, start, end = piece
        planes = self._own[layer]
        stretches = list(runs(range(end - start), route.destinations[start:end]))
        if len(frames) != 2 + len(planes):
            raise TransferError(f"zmq-tcp: {len(frames) - 2} planes came, not {len(planes)}")
        for plane, frame in zip(planes, frames[2:], strict=True):
            data = np.frombuffer(frame.buffer, np.uint8)
            if data.size != (end - start) * plane.shape[1]:
                raise TransferError(f"zmq-tcp: a plane of {data.size} bytes came")
            copy_runs(data.reshape(end - start, -1), plane, stretches)


def _number_of(frames: list[zmq.Frame]) -> int:
    try:
        return msgspec.msgpack.decode(frames[0].buffer, type=int) if len(frames) > 1 else -1
    except msgspec.MsgspecError:
        return -1
