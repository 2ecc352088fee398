# SPDX-License-Identifier: Apache-2.0
"""Signals as events, and work that a signal may interrupt. For `server.py` and the launcher."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


class StopRequested(Exception):
    """SIGTERM or SIGINT arrived."""


class Signals:
    """SIGTERM and SIGINT: the first asks the server to stop, the second to hurry."""

    _NUMBERS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Signals:
        for number in self._NUMBERS:
            self._loop.add_signal_handler(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._NUMBERS:
            self._loop.remove_signal_handler(number)

    def _receive(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


async def unless_stopped(work: Awaitable[Result], stop: asyncio.Event) -> Result:
    """The result of `work`.

    Raises:
        StopRequested: `stop` was set first.
    """
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise StopRequested
        return task.result()
    finally:
        task.cancel()
        stopping.cancel()


def in_daemon_thread(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """The result of blocking work in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def finish(set_outcome: Callable[[], None]) -> None:
        if not future.done():
            set_outcome()

    def run() -> None:
        outcome: Callable[[], None]
        try:
            result = work()
        except BaseException as error:
            outcome = functools.partial(future.set_exception, error)
        else:
            outcome = functools.partial(future.set_result, result)
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, outcome)

    threading.Thread(target=run, daemon=True).start()
    return future
