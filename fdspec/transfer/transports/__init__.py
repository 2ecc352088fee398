# SPDX-License-Identifier: Apache-2.0
"""Transports by name: those that come with fdspec, and those that other packages bring.

Another package adds one by an entry point of the group `fdspec.kv_transports`, whose name is the
transport's and whose object takes TransportOptions and gives a Transport.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import entry_points

from fdspec.core.errors import ConfigError
from fdspec.transfer.transports.interface import Transport, TransportOptions
from fdspec.transfer.transports.shm import ShmTransport
from fdspec.transfer.transports.zmq_tcp import ZmqTransport

ENTRY_POINTS = "fdspec.kv_transports"
_OWN: dict[str, Callable[[TransportOptions], Transport]] = {
    "shm": ShmTransport,
    "zmq-tcp": ZmqTransport,
}


def transport_names() -> tuple[str, ...]:
    """All that can be made here; own ones first."""
    return (*_OWN, *sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - set(_OWN)))


def make_transport(name: str, options: TransportOptions) -> Transport:
    """A transport by its name.

    Raises:
        ConfigError: there is none of that name, or its package cannot be used.
    """
    if name in _OWN:
        return _OWN[name](options)
    for point in entry_points(group=ENTRY_POINTS, name=name):
        try:
            transport: Transport = point.load()(options)
        except Exception as error:
            raise ConfigError(f"the KV transport {name} ({point.value}) fails: {error}") from error
        return transport
    names = transport_names()
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise ConfigError(f"there is no KV transport {name!r}, only {', '.join(names)}{hint}")
