# SPDX-License-Identifier: Apache-2.0
"""One server that is started, and started again whenever it ends, until it is to end.

Called by `supervisor.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from typing import TextIO

import msgspec

from fdspec.config import EngineConfig
from fdspec.config.launch import ServerPlan, SupervisionConfig
from fdspec.entrypoints.child import Child, describe_end
from fdspec.utils.logging import get_logger
from fdspec.utils.private_folder import make_private_folder

logger = get_logger(__name__)

# A server ends what it has started, too.
_END_S = 20.0
_BETWEEN_SIGNALS_S = 0.2


class GaveUp(Exception):
    """A server ended several times in a row before it was ready; the message says which and how."""


class PrefixedLines:
    """Writes whole lines, each with the name of the server before it."""

    def __init__(self, prefix: str, stream: TextIO | None = None) -> None:
        self._prefix = prefix
        self._stream = stream or sys.stderr
        self._rest = ""

    def write(self, text: str) -> None:
        """Take a piece of text, which may end within a line."""
        *lines, self._rest = (self._rest + text).split("\n")
        if lines:
            self._stream.write("".join(f"{self._prefix}{line}\n" for line in lines))
            self._stream.flush()

    def end(self) -> None:
        """Write what is left of a last line."""
        if self._rest:
            self.write("\n")


class KeptServer:
    """A server of the launch.

    Args:
        plan: of the server.
        config: likewise, with the broker's address.
        listener: its socket; `end` closes it.
        supervision: when it is started again.
        command: the program, `server.py`.
        name_width: columns of the longest name, for the log.
    """

    def __init__(
        self,
        plan: ServerPlan,
        config: EngineConfig,
        listener: socket.socket,
        *,
        supervision: SupervisionConfig,
        command: Sequence[str],
        name_width: int,
    ) -> None:
        self.plan = plan
        self.ready = asyncio.Event()
        self._config = config
        self._listener = listener
        self._supervision = supervision
        self._command = command
        self._lines = PrefixedLines(f"{plan.name.ljust(name_width)} | ")
        self._ending = asyncio.Event()
        self._may_end = False
        self._child: Child | None = None

    async def keep(self) -> None:
        """Run the server until `end`.

        Raises:
            GaveUp: it does not start.
        """
        limits = self._supervision
        num_failed = 0
        while True:
            status, was_ready, last_lines = await self._run_once()
            if self._ending.is_set() or (self._may_end and status == 0):
                return
            how = describe_end(status)
            num_failed = 0 if was_ready else num_failed + 1
            if num_failed >= limits.max_failed_starts:
                times = "" if num_failed == 1 else f" {num_failed} times in a row"
                raise GaveUp(
                    "\n".join([f"{self.plan.name} {how} before it was ready{times}", *last_lines])
                )
            delay_s = limits.restart_delay * 2 ** max(num_failed - 1, 0)
            delay_s = min(delay_s, limits.max_restart_delay)
            logger.warning("%s %s; starting it again in %g s", self.plan.name, how, delay_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), delay_s)
            if self._ending.is_set():
                return

    def let_end(self) -> None:
        """Leave the server alone if somebody else ends it from now on: the launch is ending.

        One that crashes is started again as before, so that running requests can finish.
        """
        self._may_end = True

    async def end(self, hurry: asyncio.Event) -> bool:
        """Let the server drain and end; False if it had to be killed.

        Args:
            hurry: set when it is to end without draining, now or later.
        """
        self._ending.set()
        # As long as we held it open, clients could connect and wait for nobody.
        self._listener.close()
        if self._child is None:
            return True
        # The server drains, and then its engine does.
        limit_s = 2 * self._config.server.timeout_graceful_shutdown + _END_S
        hurrying = asyncio.create_task(self._hurry(self._child, hurry))
        is_willing = await self._child.stop(limit_s)
        hurrying.cancel()
        if not is_willing:
            logger.error("%s did not end within %g s and was killed", self.plan.name, limit_s)
        return is_willing

    async def _hurry(self, child: Child, hurry: asyncio.Event) -> None:
        """Ask a second time, which the server understands."""
        await hurry.wait()
        # Two signals at the same moment would arrive as one.
        await asyncio.sleep(_BETWEEN_SIGNALS_S)
        child.ask_to_end()

    async def _run_once(self) -> tuple[int, bool, list[str]]:
        """Start the server and wait for its end: status, whether it was ready, its last lines."""
        hears, says = os.pipe()
        loop = asyncio.get_running_loop()
        told = asyncio.Event()

        def hear() -> None:
            loop.remove_reader(hears)
            if os.read(hears, 16):
                told.set()
                self.ready.set()
                logger.info("%s is ready", self.plan.name)

        # So that nothing is left of a server that is killed.
        scratch = make_private_folder()
        try:
            child = Child(self._command, self._lines.write)
            arguments = ["--listener", str(self._listener.fileno()), "--ready", str(says)]
            await child.start_with(
                msgspec.json.encode(self._config),
                *arguments,
                files=(self._listener.fileno(), says),
                cpus=self.plan.cpus,
                environment={"TMPDIR": str(scratch)},
            )
        finally:
            os.close(says)
        loop.add_reader(hears, hear)
        self._child = child
        try:
            if self._ending.is_set():
                child.ask_to_end()
            status = await child.wait_status()
        finally:
            loop.remove_reader(hears)
            os.close(hears)
            self._lines.end()
            shutil.rmtree(scratch, ignore_errors=True)
        return status, told.is_set(), child.last_lines()
