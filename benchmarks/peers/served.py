# SPDX-License-Identifier: Apache-2.0
"""A peer's HTTP server: started as a child, or running somewhere already."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load import Server, served_model
from benchmarks.peers.worker import ROOT
from scripts.server_process import ServerProcess, choose_port

START_TIMEOUT_S = 600.0
# Greedy answers of full length.
BODY = {"temperature": 0.0, "ignore_eos": True}


class ServedPeer:
    """One server.

    Args:
        name: in tables.
        command: program and arguments without the port, to start it; None if it runs already.
        url: where it runs already; None to start it.

    Attributes:
        name: in tables.
        start_s: how long it took to answer; None if it ran already.
    """

    def __init__(
        self, name: str, *, command: Sequence[str] | None = None, url: str | None = None
    ) -> None:
        assert (command is None) != (url is None)
        self.name = name
        self.start_s: float | None = None
        self._command = command
        self._url = url
        self._process: ServerProcess | None = None
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        """Where to send requests; after `start`."""
        assert self._server is not None
        return self._server

    def start(self) -> None:
        """Start the server, if it is ours, and ask for its model. Raises ServerError, HTTPError."""
        if self._command is not None:
            port = choose_port()
            start_s = time.monotonic()
            self._process = ServerProcess([*self._command, "--port", str(port)], ROOT, port)
            self._process.wait_until_healthy(START_TIMEOUT_S)
            self.start_s = time.monotonic() - start_s
            self._url = self._process.url
        assert self._url is not None
        model = asyncio.run(served_model(self._url))
        self._server = Server(self._url.rstrip("/"), model, extra_body=BODY)

    def close(self) -> None:
        """End the server if it is ours."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def memory_bytes(self) -> int | None:
        """Proportional set size of all its processes now; None for a server that ran already."""
        return None if self._process is None else tree_memory_bytes(self._process.process_id)


def tree_memory_bytes(process_id: int) -> int:
    """Memory of a process and all that it started: private pages, and its share of shared ones."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _read(folder / "stat")):
            # The name in brackets may hold blanks; the parent is the second field after it.
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    total, waiting = 0, [process_id]
    while waiting:
        process = waiting.pop()
        waiting += children.get(process, [])
        lines = _read(Path(f"/proc/{process}/smaps_rollup")).splitlines()
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def _read(path: Path) -> str:
    """Text of a file of /proc; empty if its process has ended meanwhile, or is another user's."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
