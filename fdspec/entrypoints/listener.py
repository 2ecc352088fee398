# SPDX-License-Identifier: Apache-2.0
"""The server's address, taken before anything else is started. Used by `server.py`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def bind_listener(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that has its address and takes no connection yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay off only for sockets that say that they are TCP.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        yield listener
