# SPDX-License-Identifier: Apache-2.0
"""`python -m fdspec.entrypoints.api_server --config FILE`: the HTTP server, from the command line.

Reads the configuration and runs `server.serve`. Never imports paddle; the engine's process does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from fdspec.config import EngineConfig, load_config_or_exit
from fdspec.core import FdspecError
from fdspec.entrypoints.server import serve
from fdspec.utils.logging import configure_logging

PROGRAM = "python -m fdspec.entrypoints.api_server"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a server; returns the exit status.

    0 after a signal, 1 if the engine ended, the start failed or --dry-run says that the model does
    not fit, 2 for a wrong configuration.

    Args:
        argv: command line without the program's name; None takes the process's own.
    """
    configure_logging("server")
    arguments = sys.argv[1:] if argv is None else argv
    loaded = load_config_or_exit(arguments, PROGRAM, _dry_run)
    return asyncio.run(serve(loaded.config))


def _dry_run(config: EngineConfig) -> int:
    # The engine's modules are not needed to serve: its process has them.
    from fdspec.engine.dry_run import dry_run

    try:
        report = dry_run(config)
    except FdspecError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    print(report.text)
    return 0 if report.fits else 1


if __name__ == "__main__":
    sys.exit(main())
