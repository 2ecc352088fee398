# SPDX-License-Identifier: Apache-2.0
"""Blocking work beside the loop: its result, its error, and leaving it behind."""

import asyncio
import threading

import pytest

from fdspec.core import ConfigError
from fdspec.entrypoints.stopping import StopRequested, in_daemon_thread, unless_stopped


def fail():
    raise ConfigError("no such model")


def test_result_and_error():
    async def main():
        assert await unless_stopped(in_daemon_thread(lambda: 7), asyncio.Event()) == 7
        with pytest.raises(ConfigError, match="no such model"):
            await unless_stopped(in_daemon_thread(fail), asyncio.Event())

    asyncio.run(main())


def test_blocked_work_does_not_hold_up_the_end():
    release = threading.Event()

    async def main():
        stop = asyncio.Event()
        asyncio.get_running_loop().call_soon(stop.set)
        with pytest.raises(StopRequested):
            await unless_stopped(in_daemon_thread(release.wait), stop)

    asyncio.run(main())  # would wait for a thread of the default executor
    assert not release.is_set()
    release.set()
