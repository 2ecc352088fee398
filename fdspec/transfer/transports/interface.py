# SPDX-License-Identifier: Apache-2.0
"""What a transport is: a way to copy blocks of another process's cache into one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from fdspec.core.kv_memory import KVMemory
from fdspec.transfer.offer import OfferRef

Guard = Callable[[OfferRef], tuple[int, ...] | None]
"""The blocks that the holder of a ref may read now; None if none."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport can do.

    Attributes:
        same_host_only: both ends must be on one machine.
        one_sided: reads go on while the source's process is stopped, and are not guarded by it.
        encrypted: nobody on the way can read along.
    """

    same_host_only: bool
    one_sided: bool
    encrypted: bool


class Piece(NamedTuple):
    """Blocks of one layer: indices start .. end (half open) into an offer's blocks."""

    layer: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Route:
    """Which block goes where.

    Attributes:
        ref: of the offer.
        sources: blocks at the source, in order of position.
        destinations: own blocks, in the same order; as many.
    """

    ref: OfferRef
    sources: tuple[int, ...]
    destinations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """CURVE keys of a process that listens (Z85): its own, and those of peers it lets in."""

    public: bytes
    secret: bytes
    allowed: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """CURVE keys of a process that connects (Z85)."""

    public: bytes
    secret: bytes


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """Where a transport may listen, and who it is. Each takes what it needs.

    Attributes:
        directory: private folder (mode 0700) for sockets.
        listen: ZMQ address to listen on; `*` as the port takes a free one.
        server_keys, client_keys: CURVE keys, or None.
    """

    directory: Path
    listen: str = "tcp://127.0.0.1:*"
    server_keys: ServerKeys | None = None
    client_keys: ClientKeys | None = None


class Connection(Protocol):
    """The way to one peer's blocks. Used by one thread at a time."""

    def read(self, route: Route, pieces: Sequence[Piece], timeout_s: float) -> None:
        """Copy pieces into own blocks.

        Raises:
            TransferError: not all arrived; some may have been written, others may be written until
                `quiesce` says that they are not.
        """
        ...

    def quiesce(self, timeout_s: float) -> bool:
        """True once nothing that was asked for before can still write into own blocks."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...


class Transport(Protocol):
    """One kind of way, for both ends. `register_pool` comes first."""

    capabilities: Capabilities

    def register_pool(self, memory: KVMemory, guard: Guard | None) -> bytes:
        """Take one's own cache.

        Args:
            memory: the cache; stays valid until `close`.
            guard: asked before others read; None if nobody may, so nothing listens.

        Returns:
            The descriptor that peers connect with; empty without a guard.
        """
        ...

    def connect(self, descriptor: bytes) -> Connection:
        """Open the way to a peer, which must have the same layout.

        Raises:
            TransferError: it cannot be reached.
        """
        ...

    def close(self) -> None:
        """Stop listening and free everything; connections are closed before. Idempotent."""
        ...
