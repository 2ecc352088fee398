# SPDX-License-Identifier: Apache-2.0
"""One server of a launch: the program that the launcher starts.

Reads an EngineConfig as JSON from standard input, so that secrets are on no command line, and takes
its listening socket from the launcher, so that its address outlives it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Sequence

import msgspec

from fdspec.config import EngineConfig
from fdspec.entrypoints.engine_process import ENGINE_COMMAND
from fdspec.entrypoints.server import serve
from fdspec.utils.logging import configure_logging

SERVER_COMMAND = (sys.executable, "-m", "fdspec.entrypoints.launch.server")


def main(argv: Sequence[str] | None = None, engine_command: Sequence[str] = ENGINE_COMMAND) -> int:
    """Run the server as the launcher asks; returns its exit status.

    Args:
        argv: command line without the program's name; None takes the process's own.
        engine_command: the engine process.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listener", type=int, required=True, help="descriptor of the socket")
    parser.add_argument("--ready", type=int, required=True, help="descriptor to say it to")
    options = parser.parse_args(argv)
    configure_logging("server")
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)

    def say_ready() -> None:
        os.write(options.ready, b"ready")
        os.close(options.ready)

    with socket.socket(fileno=options.listener) as listener:
        return asyncio.run(serve(config, engine_command, listener, say_ready))


if __name__ == "__main__":
    sys.exit(main())
