# SPDX-License-Identifier: Apache-2.0
"""Log lines of all fdspec processes, in one format on standard error.

The level comes from FDSPEC_LOG (info if unset). Entry points call `configure_logging` once per
process; modules only call `get_logger`. A library user who configures nothing hears warnings only.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

LEVELS = ("debug", "info", "warning", "error")


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; pass `__name__`."""
    return logging.getLogger(name)


def level_from_environment(environment: Mapping[str, str] | None = None) -> int:
    """Level that FDSPEC_LOG asks for.

    Raises:
        ValueError: FDSPEC_LOG is not one of LEVELS.
    """
    name = (os.environ if environment is None else environment).get("FDSPEC_LOG", "info")
    if name.lower() not in LEVELS:
        raise ValueError(f"FDSPEC_LOG must be one of {', '.join(LEVELS)}, got {name!r}")
    return int(getattr(logging, name.upper()))


def configure_logging(process_name: str = "server") -> None:
    """Send fdspec's log lines to standard error; call it again to change the process name.

    Args:
        process_name: shown in each line; tells the frontend from the engine.

    Raises:
        ValueError: FDSPEC_LOG is not one of LEVELS.
    """
    logger = logging.getLogger("fdspec")
    logger.setLevel(level_from_environment())
    handler = logging.StreamHandler(sys.stderr)
    text = f"%(asctime)s %(levelname)-7s {process_name}[%(process)d] %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(text, "%H:%M:%S"))
    logger.handlers[:] = [handler]
    logger.propagate = False
