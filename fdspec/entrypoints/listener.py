# SPDX-License-Identifier: Apache-2.0
"""A server's address, taken before anything else is started. For `server.py` and the launcher."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Door:
    """Where a server's clients come in.

    Attributes:
        listener: bound; the server listens when it is ready.
        on_serving: called when it does.
    """

    listener: socket.socket
    on_serving: Callable[[], None]


def url_of(listener: socket.socket) -> str:
    """Address of a bound socket, for clients."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def bind_listener(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that has its address and takes no connection yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay off only for sockets that say that they are TCP.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        yield listener
