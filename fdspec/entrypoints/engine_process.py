# SPDX-License-Identifier: Apache-2.0
"""The engine as a child process: start it, pass its output on, notice its end, stop it.

The child is a fresh interpreter (never a fork) that dies with this process. It gets the topic's
endpoint as `--endpoint` and an EngineConfig as JSON on standard input; it runs no shell.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import sys
from collections.abc import Sequence

import msgspec

from fdspec.config import EngineConfig
from fdspec.utils.child_process import die_with_parent

# Paddle's import complains of a compiler cache that is of no use here.
_QUIET = ("-W", "ignore:No ccache found")
ENGINE_COMMAND = (sys.executable, *_QUIET, "-m", "fdspec.engine.process")
_TAIL_BYTES = 4096
_CHUNK_BYTES = 65536
_OUTPUT_GRACE_S = 1.0


class EngineProcess:
    """One child; start it in the main thread, because the kernel ties its life to that thread."""

    def __init__(self, command: Sequence[str] = ENGINE_COMMAND) -> None:
        self._command = tuple(command)
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[None] | None = None
        self._tail = b""

    async def start(self, config: EngineConfig, endpoint: str) -> None:
        """Start the child and hand it its configuration.

        Args:
            config: for the engine; the API keys stay here.
            endpoint: address of the topic.
        """
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            "--endpoint",
            endpoint,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C goes to a terminal's whole group; the child is stopped by us, after draining.
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        self._output = asyncio.create_task(self._pass_output(self._process.stdout))
        stdin = self._process.stdin
        assert stdin is not None
        # A child that is dead already is noticed by `wait`.
        with contextlib.suppress(ConnectionError):
            stdin.write(msgspec.json.encode(_without_keys(config)))
            await stdin.drain()
        stdin.close()

    async def wait(self) -> str:
        """Wait for the child's end; returns how it ended, for people."""
        assert self._process is not None and self._output is not None
        status = await self._process.wait()
        # Somebody else may hold the pipe open; what the child wrote arrives at once.
        await asyncio.wait((self._output,), timeout=_OUTPUT_GRACE_S)
        if status >= 0:
            return f"the engine process ended with exit status {status}"
        name = signal.Signals(-status).name
        hint = "; it may have run out of memory" if -status == signal.SIGKILL else ""
        return f"the engine process was ended by {name}{hint}"

    def last_lines(self, count: int = 10) -> list[str]:
        """The last lines that the child wrote. Does not modify."""
        return self._tail.decode("utf-8", errors="replace").splitlines()[-count:]

    def ask_to_end(self) -> None:
        """Send SIGTERM, without waiting for what follows. Idempotent."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    async def stop(self, timeout_s: float = 5.0) -> None:
        """End the child: SIGTERM, and SIGKILL if it takes longer than timeout_s. Idempotent."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            self.ask_to_end()
            try:
                await asyncio.wait_for(process.wait(), timeout_s)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._output is not None:
            await asyncio.wait((self._output,), timeout=_OUTPUT_GRACE_S)
            self._output.cancel()

    async def _pass_output(self, stream: asyncio.StreamReader | None) -> None:
        """Copy what the child writes to our standard error, and keep the end of it."""
        assert stream is not None
        while chunk := await stream.read(_CHUNK_BYTES):
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
            sys.stderr.write(chunk.decode("utf-8", errors="replace"))
            sys.stderr.flush()


def _without_keys(config: EngineConfig) -> EngineConfig:
    return dataclasses.replace(config, server=dataclasses.replace(config.server, api_key=()))
