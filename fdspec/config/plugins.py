# SPDX-License-Identifier: Apache-2.0
"""Names of proposers that other packages bring, by their entry points.

Asks the installed packages only; nothing of a plug-in is imported here.
"""

from __future__ import annotations

from importlib.metadata import entry_points

ENTRY_POINT_GROUP = "fdspec.proposers"


def plugin_names() -> tuple[str, ...]:
    """Methods that plug-ins add, in alphabetical order."""
    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)}))
