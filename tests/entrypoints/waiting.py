# SPDX-License-Identifier: Apache-2.0
"""Waits for what another thread or process does; a deadline only stops a broken test."""

import time
from collections.abc import Callable

DEADLINE_S = 60


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.005)
