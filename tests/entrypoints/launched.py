# SPDX-License-Identifier: Apache-2.0
"""A launch as a process, for tests: its log, its servers' processes, and its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import httpx

from tests.entrypoints.waiting import DEADLINE_S, wait_until

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("fake_engine_process.py")


class Launch:
    """A launch and what it wrote; a context manager that leaves nothing behind.

    Args:
        command: program and arguments.
        scratch: folder for what it keeps while it runs.
    """

    def __init__(self, command: Sequence[str], scratch: Path) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)},
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)

    @property
    def log(self) -> str:
        return "".join(self._lines)

    @property
    def process_id(self) -> int:
        return self._process.pid

    def wait_for(self, pattern: str, count: int = 1) -> str:
        """Wait until the log holds a pattern so many times; its first group, of the last time."""
        found: list[str] = []

        def look() -> bool:
            found[:] = re.findall(pattern, self.log)
            return len(found) >= count or self._process.poll() is not None

        wait_until(look)
        assert len(found) >= count, self.log
        return found[-1]

    def wait_ready(self) -> str:
        """Wait until all servers are ready; the address."""
        return self.wait_for(r"servers are ready: (http://\S+)")

    def server_pid(self, name: str) -> int:
        """Process of a server that is ready or has been so."""
        return int(self.wait_for(rf"(?m)^{name} +\| .* server\[(\d+)\] .*serving on"))

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, unless it is 0, and wait for the end."""
        if number:
            self.send(number)
        status = self._process.wait(DEADLINE_S)
        self._reader.join()
        return status


def fake_launch(folder: Path, mode: str, *flags: str) -> Launch:
    """A launch of `launch.yaml` in a folder, whose engines are fakes."""
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    file = str(folder / "launch.yaml")
    return Launch([sys.executable, str(FAKE), "launch", file, mode, *flags], scratch)


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def alive(pids: Sequence[int]) -> list[int]:
    """Those that still run; zombies do not."""

    def runs(pid: int) -> bool:
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] != "Z"

    return [pid for pid in pids if runs(pid)]


def client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=DEADLINE_S)
