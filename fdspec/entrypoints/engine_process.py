# SPDX-License-Identifier: Apache-2.0
"""The engine as a child process of its server.

It gets the topic's endpoint as `--endpoint` and an EngineConfig as JSON on standard input.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

import msgspec

from fdspec.config import EngineConfig
from fdspec.entrypoints.child import Child, describe_end

# Paddle's import complains of a compiler cache that is of no use here.
_QUIET = ("-W", "ignore:No ccache found")
ENGINE_COMMAND = (sys.executable, *_QUIET, "-m", "fdspec.engine.process")


class EngineProcess(Child):
    """One engine; start it in the main thread."""

    def __init__(self, command: Sequence[str] = ENGINE_COMMAND) -> None:
        super().__init__(command)

    async def start(self, config: EngineConfig, endpoint: str) -> None:
        """Start the engine and hand it its configuration.

        Args:
            config: for the engine; the API keys stay here.
            endpoint: address of the topic.
        """
        given = msgspec.json.encode(_without_keys(config))
        await self.start_with(given, "--endpoint", endpoint)

    async def wait(self) -> str:
        """Wait for the engine's end; returns how it ended, for people."""
        return f"the engine process {describe_end(await self.wait_status())}"


def _without_keys(config: EngineConfig) -> EngineConfig:
    return dataclasses.replace(config, server=dataclasses.replace(config.server, api_key=()))
