# SPDX-License-Identifier: Apache-2.0
"""Names of proposers and KV transports that other packages bring, by their entry points.

Asks the installed packages only; nothing of a plug-in is imported here.
"""

from __future__ import annotations

from importlib.metadata import entry_points

PROPOSERS = "fdspec.proposers"
KV_TRANSPORTS = "fdspec.kv_transports"


def plugin_names(group: str) -> tuple[str, ...]:
    """What plug-ins add to a group, in alphabetical order.

    Args:
        group: PROPOSERS or KV_TRANSPORTS.
    """
    return tuple(sorted({point.name for point in entry_points(group=group)}))
