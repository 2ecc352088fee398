# SPDX-License-Identifier: Apache-2.0
"""Trouble: one line in the log when a broker is lost, and one when it is back."""

from __future__ import annotations

import time

from fdspec.core import FdspecError
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)


class Trouble:
    """Whether a broker answers one member. Used by one thread."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    @property
    def age_s(self) -> float:
        """How long it has not answered; 0 while it does. Does not modify."""
        return 0.0 if self._since_s is None else time.monotonic() - self._since_s

    def note(self, error: FdspecError) -> None:
        """A call has failed."""
        if self._since_s is None:
            self._since_s = time.monotonic()
            logger.warning("the broker cannot be reached; trying again: %s", error)

    def end(self) -> None:
        """A call got through."""
        if self._since_s is not None:
            logger.info("the broker is back after %.1f s", self.age_s)
            self._since_s = None
