# SPDX-License-Identifier: Apache-2.0
"""`python -m fdspec.entrypoints.api_server --config FILE`: the HTTP server, from the command line.

Reads the configuration and runs `server.serve`. Never imports paddle; the engine's process does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from fdspec.config import load_config_or_exit
from fdspec.entrypoints.server import serve
from fdspec.utils.logging import configure_logging

PROGRAM = "python -m fdspec.entrypoints.api_server"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a server; returns the exit status.

    0 after a signal, 1 if the engine ended or the start failed, 2 for a wrong configuration.

    Args:
        argv: command line without the program's name; None takes the process's own.
    """
    configure_logging("server")
    loaded = load_config_or_exit(sys.argv[1:] if argv is None else argv, PROGRAM)
    return asyncio.run(serve(loaded.config))


if __name__ == "__main__":
    sys.exit(main())
