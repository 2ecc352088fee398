# SPDX-License-Identifier: Apache-2.0
"""Peer: a decode thread's connections to one prefill process. Used by one thread."""

from __future__ import annotations

from collections.abc import Mapping

from fdspec.transfer.errors import TransferError, WireError
from fdspec.transfer.messages import Answer, Call
from fdspec.transfer.offer import Offer, decode, encode
from fdspec.transfer.transports.interface import ClientKeys, Connection, Transport
from fdspec.transfer.zmq_sockets import Dialer

_MAX_QUEUED = 1000


class Peer:
    """The control connection, and one connection for each transport that has been used.

    Args:
        offer: any offer of the process.
        transports: own ends by name.
        keys: CURVE keys, or None.
        connect_s: how long to wait for the control connection.

    Raises:
        TransferError: the process does not listen any more.
    """

    def __init__(
        self,
        offer: Offer,
        transports: Mapping[str, Transport],
        keys: ClientKeys | None,
        connect_s: float,
    ) -> None:
        self._transports = transports
        self._descriptors = {end.transport: end.descriptor for end in offer.endpoints}
        self._connections: dict[str, Connection] = {}
        self._dialer = Dialer(
            offer.control, keys, offer.control_key, max_queued=_MAX_QUEUED, connect_s=connect_s
        )

    def say(self, call: Call) -> None:
        """Send a call (TransferError: the process is gone)."""
        self._dialer.send([encode(call)])

    def hear(self, timeout_s: float) -> Answer | None:
        """The next answer; None if none comes in time, or what comes is none.

        Raises:
            TransferError: the process is gone.
        """
        frames = self._dialer.receive(timeout_s)
        try:
            return None if frames is None else decode(b"".join(f.bytes for f in frames), Answer)
        except WireError:
            return None

    def connection(self, transport: str) -> Connection:
        """The connection by a transport (TransferError: there is no way)."""
        if transport not in self._connections:
            descriptor = self._descriptors.get(transport)
            if descriptor is None:
                raise TransferError(f"the source does not offer {transport}")
            self._connections[transport] = self._transports[transport].connect(descriptor)
        return self._connections[transport]

    def has_connection(self, transport: str) -> bool:
        """True if `connection` would open nothing. Does not modify."""
        return transport in self._connections

    def detach(self, transport: str) -> Connection | None:
        """Give a connection away; the next use of the transport opens another one."""
        return self._connections.pop(transport, None)

    def is_gone(self) -> bool:
        """True if the process has ended. Answers that nobody waits for are dropped."""
        try:
            while self._dialer.receive(0) is not None:
                pass
        except TransferError:
            return True
        return False

    def close(self) -> None:
        """Free everything. Idempotent."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._dialer.close()
