# SPDX-License-Identifier: Apache-2.0
"""Counters of a server's /metrics, before and after a run: drafts by position, handoffs of caches.

Understands every server whose counters are called as vLLM's, whatever their prefix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.http_client import HTTPError, get_text

Counters = Mapping[str, float]

_SAMPLE = re.compile(r"(?P<name>[^\s{]+)(?P<labels>\{.*\})? (?P<value>\S+)")
_POSITION = re.compile(r'position="(\d+)"')
_DRAFTS = ("drafts", "draft_tokens", "accepted_tokens")
_HANDOFFS = ("handoffs_loaded", "handoffs_failed", "handoff_bytes", "handoff_seconds")
_BY_POSITION = ("draft_tokens_per_pos", "accepted_tokens_per_pos")


async def read_counters(base_url: str, headers: Mapping[str, str] | None = None) -> Counters | None:
    """What a server has counted, by name and, for positions, `name.position`; None if it does not.

    Args:
        base_url: of the server.
        headers: such as an API key.
    """
    try:
        text = await get_text(f"{base_url}/metrics", headers)
    except HTTPError:
        return None
    counters: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        name = _own_name(match["name"], match["labels"] or "") if match else None
        if match and name:
            counters[name] = counters.get(name, 0.0) + float(match["value"])
    return counters or None


def draft_summary(before: Counters | None, after: Counters | None) -> dict[str, Any] | None:
    """What speculation did between two readings; None if the server does not speculate."""
    if before is None or after is None or not any(name in after for name in _DRAFTS):
        return None
    counts = {name: after[name] - before.get(name, 0.0) for name in after}
    found: dict[str, Any] = {name: counts[name] for name in _DRAFTS if name in counts}
    drafted, accepted = found.get("draft_tokens", 0.0), found.get("accepted_tokens", 0.0)
    found["acceptance_rate"] = accepted / drafted if drafted else 0.0
    shares: list[float] = []
    while f"{_BY_POSITION[0]}.{len(shares)}" in counts:
        of, kept = (counts.get(f"{name}.{len(shares)}", 0.0) for name in _BY_POSITION)
        if not of:
            break
        shares.append(kept / of)
    found["acceptance_by_position"] = shares
    return found


def handoff_summary(
    before: Mapping[str, Counters | None], after: Mapping[str, Counters | None]
) -> dict[str, float] | None:
    """What decode servers took over from prefill servers between two readings.

    Args:
        before, after: readings by server.

    Returns:
        how many KV caches, how many could not be had, megabytes and milliseconds of each on
        average; None if no server took any over.
    """
    total = dict.fromkeys(_HANDOFFS, 0.0)
    for server, counters in after.items():
        for name in total:
            earlier = (before.get(server) or {}).get(name, 0.0)
            total[name] += (counters or {}).get(name, 0.0) - earlier
    loaded, failed, size, seconds = total.values()
    if not loaded and not failed:
        return None
    count = max(loaded, 1.0)
    return {
        "loaded": loaded,
        "failed": failed,
        "mean_megabytes": size / count / 1e6,
        "mean_ms": 1000 * seconds / count,
    }


def _own_name(name: str, labels: str) -> str | None:
    tail = name.partition(":")[2]
    for known in _DRAFTS:
        if tail == f"spec_decode_num_{known}_total":
            return known
    for known in _HANDOFFS:
        if tail == f"kv_{known}_total":
            return known
    position = _POSITION.search(labels)
    for known in _BY_POSITION:
        if position and tail == f"spec_decode_num_{known}_total":
            return f"{known}.{position[1]}"
    return None
