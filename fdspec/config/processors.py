# SPDX-License-Identifier: Apache-2.0
"""Sets of processors as people write them: `0-3,8`. Called by `launch.py`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from fdspec.config.settings import Setting
from fdspec.core.errors import ConfigError

Processors = frozenset[int]

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def read_processors(setting: Setting, count: int) -> list[Processors | None]:
    """The processors of each of `count` servers.

    Args:
        setting: a number, a text such as `0-3,8`, or a list with one of these for each server;
            null is all.
        count: how many servers.

    Raises:
        ConfigError: it is something else, or names processors that this process may not use.
    """
    value = setting.value
    if value is None:
        return [None] * count
    parts = value if isinstance(value, list) else [value] * count
    if len(parts) != count:
        raise ConfigError(
            f"{setting.where}: a list must have one entry for each of the {count} servers (count), "
            f"got {value!r}; the processors of one server are written as 0-3 or 0,2"
        )
    return [_read_one(setting, str(part)) for part in parts]


def show_processors(cpus: Iterable[int]) -> str:
    """A set of processors as people write it."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in runs)


def _read_one(setting: Setting, text: str) -> Processors:
    found: set[int] = set()
    usable = os.sched_getaffinity(0)
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        # The least end that is out of reach says enough; a range may be written without bound.
        found.update(range(low, min(high, max(usable) + 1) + 1))
        if low > high:
            found.clear()
            break
    if not found or not found <= usable:
        raise ConfigError(
            f"{setting.where}: must be processors that this process may use "
            f"({show_processors(usable)}), written as 0-3 or 0,2; got {text!r}"
        )
    return frozenset(found)
