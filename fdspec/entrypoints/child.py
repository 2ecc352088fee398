# SPDX-License-Identifier: Apache-2.0
"""A child process in asyncio: start it, pass on what it writes, notice its end, stop it.

The child is a fresh interpreter (never a fork) that dies with this process. It gets its input at
once, as JSON on standard input, and runs no shell. Used for engines and by the launcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

from fdspec.utils.child_process import die_with_parent

_TAIL_BYTES = 4096
_CHUNK_BYTES = 65536
_OUTPUT_GRACE_S = 1.0


class Child:
    """One child; start it in the main thread, because the kernel ties its life to that thread.

    Args:
        command: program and arguments.
        write: takes what the child writes, in pieces; by default it goes to our standard error.
    """

    def __init__(self, command: Sequence[str], write: Callable[[str], None] | None = None) -> None:
        self._command = tuple(command)
        self._write = write or _to_standard_error
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[None] | None = None
        self._tail = b""

    async def start_with(
        self,
        given: bytes,
        *arguments: str,
        files: Collection[int] = (),
        cpus: Collection[int] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the child.

        Args:
            given: its standard input.
            arguments: more of its command line.
            files: descriptors that it inherits, under the same numbers.
            cpus: processors that it may use; None for all of ours.
            environment: variables beside ours.
        """
        die = die_with_parent()

        def prepare() -> None:
            die()
            if cpus is not None:
                os.sched_setaffinity(0, cpus)

        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            pass_fds=tuple(files),
            # Ctrl-C goes to a terminal's whole group; the child is stopped by us, after draining.
            start_new_session=True,
            preexec_fn=prepare,
        )
        self._output = asyncio.create_task(self._pass_output(self._process.stdout))
        stdin = self._process.stdin
        assert stdin is not None
        # A child that is dead already is noticed by `wait_status`.
        with contextlib.suppress(ConnectionError):
            stdin.write(given)
            await stdin.drain()
        stdin.close()

    @property
    def process_id(self) -> int:
        """Of the child, which was started."""
        assert self._process is not None
        return self._process.pid

    async def wait_status(self) -> int:
        """Wait for the child's end and its last words.

        Returns:
            its exit status, or the negative number of the signal that ended it.
        """
        assert self._process is not None and self._output is not None
        status = await self._process.wait()
        # Somebody else may hold the pipe open; what the child wrote arrives at once.
        await asyncio.wait((self._output,), timeout=_OUTPUT_GRACE_S)
        return status

    def last_lines(self, count: int = 10) -> list[str]:
        """The last lines that the child wrote. Does not modify."""
        return self._tail.decode("utf-8", errors="replace").splitlines()[-count:]

    def ask_to_end(self) -> None:
        """Send SIGTERM, without waiting for what follows. Idempotent."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    async def stop(self, timeout_s: float = 5.0) -> bool:
        """End the child: SIGTERM, and SIGKILL if it takes longer than timeout_s. Idempotent.

        Returns:
            False if it had to be killed.
        """
        process = self._process
        if process is None:
            return True
        is_willing = True
        if process.returncode is None:
            self.ask_to_end()
            try:
                await asyncio.wait_for(process.wait(), timeout_s)
            except TimeoutError:
                is_willing = False
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._output is not None:
            await asyncio.wait((self._output,), timeout=_OUTPUT_GRACE_S)
            self._output.cancel()
        return is_willing

    async def _pass_output(self, stream: asyncio.StreamReader | None) -> None:
        """Pass on what the child writes, and keep the end of it."""
        assert stream is not None
        while chunk := await stream.read(_CHUNK_BYTES):
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
            self._write(chunk.decode("utf-8", errors="replace"))


def describe_end(status: int) -> str:
    """How a process ended, to follow its name: `ended with exit status 1`."""
    if status >= 0:
        return f"ended with exit status {status}"
    hint = "; it may have run out of memory" if -status == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-status).name}{hint}"


def _to_standard_error(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
