# SPDX-License-Identifier: Apache-2.0
"""Transport `shm`: map the memfd of a cache on the same machine, and copy.

The source listens on a unix socket in a private folder and hands its memfd, opened for reading
only, to processes of the same user. Nothing lies in /dev/shm: the memory goes with the last process
that maps it, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from fdspec.core.errors import ConfigError
from fdspec.core.kv_memory import KVMemory, KVPlane
from fdspec.transfer.checksums import Layers
from fdspec.transfer.errors import TransferError
from fdspec.transfer.transports.copying import copy_runs, runs
from fdspec.transfer.transports.interface import (
    Capabilities,
    Guard,
    Piece,
    Route,
    TransportOptions,
)

_MAX_PATH_BYTES = 107
_PEER_CREDENTIALS = struct.Struct("3i")
_CONNECT_S = 2.0
_ACCEPT_S = 0.2


class _Descriptor(msgspec.Struct, frozen=True):
    """Where the socket is, and what lies where in the arena that comes through it."""

    path: str
    size_bytes: int
    num_blocks: int
    planes: tuple[KVPlane, ...]


class ShmTransport:
    """See `Transport`.

    Args:
        options: `directory` is where the socket goes.
    """

    capabilities = Capabilities(same_host_only=True, one_sided=True, encrypted=True)

    def __init__(self, options: TransportOptions) -> None:
        self._directory = options.directory
        self._layers: Layers = ()
        self._server: _FileServer | None = None

    def register_pool(self, memory: KVMemory, guard: Guard | None) -> bytes:
        """See `Transport.register_pool`.

        Raises:
            ConfigError: the cache is not in a memfd, or the folder is not private or too deep.
        """
        self._layers = memory.layer_blocks()
        if guard is None:
            return b""
        if memory.file_descriptor < 0:
            raise ConfigError("the transport shm needs a KV cache in a memfd")
        path = self._directory / f"kv-{secrets.token_hex(8)}.sock"
        self._server = _FileServer(path, memory.file_descriptor)
        return msgspec.msgpack.encode(
            _Descriptor(str(path), memory.arena.nbytes, memory.num_blocks, memory.planes)
        )

    def connect(self, descriptor: bytes) -> ShmConnection:
        """See `Transport.connect`."""
        try:
            told = msgspec.msgpack.decode(descriptor, type=_Descriptor)
        except msgspec.MsgspecError as error:
            raise TransferError(f"shm: malformed descriptor: {error}") from None
        return ShmConnection(told, self._layers)

    def close(self) -> None:
        """See `Transport.close`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._layers = ()


class _FileServer:
    """Gives a file, for reading, to whoever of the same user connects."""

    def __init__(self, path: Path, file_descriptor: int) -> None:
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise ConfigError(f"{path} is too long for a socket; choose a shorter folder")
        mode = path.parent.stat().st_mode & 0o777
        if mode & 0o077:
            raise ConfigError(
                f"{path.parent} has mode {mode:o}, so others could connect: chmod 700 {path.parent}"
            )
        self._path = path
        # The descriptor itself is open for writing, too.
        self._file = os.open(f"/proc/self/fd/{file_descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen()
        self._socket.settimeout(_ACCEPT_S)
        self._stopping = threading.Event()
        self._peers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, name="kv-shm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        for peer in (*self._peers, self._socket):
            peer.close()
        os.close(self._file)
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            self._drop_closed()
            try:
                peer, _ = self._socket.accept()
            except TimeoutError:
                continue
            size = _PEER_CREDENTIALS.size
            raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            if _PEER_CREDENTIALS.unpack(raw)[1] != os.getuid():
                peer.close()
                continue
            peer.setblocking(False)
            try:
                socket.send_fds(peer, [b"\0"], [self._file])
                # Its end tells the peer that this process has ended.
                self._peers.append(peer)
            except OSError:
                peer.close()

    def _drop_closed(self) -> None:
        for peer in list(self._peers):
            if _has_ended(peer):
                peer.close()
                self._peers.remove(peer)


class ShmConnection:
    """A mapping of a peer's arena; see `Connection`."""

    def __init__(self, told: _Descriptor, layers: Layers) -> None:
        self._own = layers
        self._path = told.path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._theirs = self._map(told)
        except BaseException:
            self._socket.close()
            raise

    def read(self, route: Route, pieces: Sequence[Piece], timeout_s: float) -> None:
        """See `Connection.read`; copying does not wait for anybody."""
        if _has_ended(self._socket):
            raise TransferError("shm: the source has ended")
        stretches: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for layer, start, end in pieces:
            if (start, end) not in stretches:
                stretches[start, end] = list(
                    runs(route.sources[start:end], route.destinations[start:end])
                )
            for source, destination in zip(self._theirs[layer], self._own[layer], strict=True):
                copy_runs(source, destination, stretches[start, end])

    def quiesce(self, timeout_s: float) -> bool:
        """True: `read` has copied everything itself when it returns."""
        return True

    def close(self) -> None:
        """See `Connection.close`; the mapping goes with the last view."""
        self._socket.close()
        self._theirs = ()

    def _map(self, told: _Descriptor) -> Layers:
        self._socket.settimeout(_CONNECT_S)
        try:
            self._socket.connect(told.path)
            _, files, _, _ = socket.recv_fds(self._socket, 1, 1)
        except OSError as error:
            raise TransferError(f"shm: {told.path}: {error}") from None
        if not files:
            raise TransferError(f"shm: {told.path}: the source sent no file")
        self._socket.setblocking(False)
        try:
            size = os.fstat(files[0]).st_size
            seals = fcntl.fcntl(files[0], fcntl.F_GET_SEALS)
            if size != told.size_bytes or not seals & fcntl.F_SEAL_SHRINK:
                raise TransferError("shm: the source's memory could shrink under us")
            arena = np.frombuffer(mmap.mmap(files[0], size, prot=mmap.PROT_READ), np.uint8)
        finally:
            os.close(files[0])
        layers = KVMemory(arena, told.planes, told.num_blocks).layer_blocks()
        shapes = [[plane.shape[1] for plane in planes] for planes in layers]
        if shapes != [[plane.shape[1] for plane in planes] for planes in self._own]:
            raise TransferError("shm: the source's blocks have another size")
        return layers


def _has_ended(peer: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        try:
            return peer.recv(1) == b""
        except ConnectionError:
            return True
    return False
