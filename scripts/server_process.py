# SPDX-License-Identifier: Apache-2.0
"""One fdspec server as a child process: start it, wait for it, and leave nothing behind.

Called by demo.py and by tests that need a real server.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import httpx

from fdspec.utils.child_process import die_with_parent

STOP_TIMEOUT_S = 15.0
LOG_LINES = 30


class ServerError(Exception):
    """The server did not start or ended by itself; the message holds the end of its log."""


def choose_port(preferred: int | None = None) -> int:
    """A free port on loopback: the preferred one, else any."""
    for port in [preferred, 0] if preferred else [0]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ServerError("there is no free port on 127.0.0.1")


class ServerProcess:
    """A server in a process group of its own; the group ends with the `with` block.

    Start it in the main thread, because the kernel ties its life to that thread.

    Args:
        command: program and arguments.
        folder: where it runs.
        port: where it listens on 127.0.0.1.
        show_log: log to standard error instead of a temporary file.
        environment: additional variables.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        port: int,
        *,
        show_log: bool = False,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log: IO[bytes] | None = None
        if not show_log:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed in stop
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT if self._log is not None else None,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            # Also if this process is killed; the server's own children end with it.
            preexec_fn=die_with_parent(),
        )

    @property
    def process_id(self) -> int:
        """Id of the process, which is also the id of its group."""
        return self._process.pid

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def wait_until_healthy(self, timeout_s: float) -> None:
        """Wait for /health, with a sign of life on a terminal.

        Raises:
            ServerError: the server ended, or is not healthy in time.
        """
        start = time.monotonic()
        print(f"starting the server on {self.url} ", end="", flush=True)
        while not self._is_healthy():
            if self._process.poll() is not None:
                raise ServerError(f"the server ended while starting\n{self.log_tail()}")
            if time.monotonic() - start > timeout_s:
                raise ServerError(f"not healthy after {timeout_s:.0f} s\n{self.log_tail()}")
            if sys.stdout.isatty():
                print(".", end="", flush=True)
            time.sleep(0.2)
        print(f" ready after {time.monotonic() - start:.1f} s", flush=True)

    def wait_until_logged(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """Wait for a line of the log that a pattern is found in.

        Raises:
            ServerError: the server ended, or did not write it in time.
        """
        deadline_s = time.monotonic() + timeout_s
        while (match := re.search(pattern, self.log())) is None:
            if self._process.poll() is not None:
                raise ServerError(f"the server ended while starting\n{self.log_tail()}")
            if time.monotonic() > deadline_s:
                raise ServerError(f"not ready after {timeout_s:.0f} s\n{self.log_tail()}")
            time.sleep(0.1)
        return match

    def wait(self) -> int:
        """Wait for the server to end by itself; returns its exit status."""
        return self._process.wait()

    def stop(self) -> None:
        """Ask the server to end, then make sure of its whole process group."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                print("the server does not stop by itself; killing it", file=sys.stderr)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._log is not None:
            self._log.close()

    def log(self) -> str:
        """All that was logged; empty if it is shown anyway."""
        if self._log is None:
            return ""
        # The server writes at the end of the same file, whose position both share.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def log_tail(self) -> str:
        """The last lines of the log; empty if it is shown anyway."""
        return "\n".join(self.log().splitlines()[-LOG_LINES:])

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False
