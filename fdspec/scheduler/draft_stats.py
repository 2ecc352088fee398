# SPDX-License-Identifier: Apache-2.0
"""What became of a draft, for the event that reports it: by position and by source. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fdspec.core import Draft, DraftStats, Verdict
from fdspec.core.draft import depths


def draft_stats(draft: Draft, verdict: Verdict) -> DraftStats | None:
    """Counts of the draft tokens that count; None if there are none.

    Probes count where they were accepted. Behind a stop nothing counts: of a draft that was cut
    short by one, only the tokens up to the depth of the last accepted one do.

    Args:
        draft: the rows that were verified.
        verdict: what was kept of them.
    """
    if verdict.num_drafted == 0:
        return None
    num_drafted, num_accepted = verdict.num_drafted, len(verdict.kept)
    if draft.sources is None and not draft.num_probes and draft.is_chain:
        return DraftStats(num_drafted, num_accepted, draft.source)
    levels = depths(draft.parents.tolist())
    counted = draft.counted(verdict.kept)
    if num_drafted < len(counted):
        counted = [index for index in counted if levels[index] <= num_accepted]
    num_positions = max(levels[index] for index in counted)
    by_source: tuple[tuple[str, int, int], ...] = ()
    if draft.sources is not None:
        by_source = _by_source(draft.sources, counted, verdict.kept)
    return DraftStats(num_drafted, num_accepted, draft.source, num_positions, by_source)


def _by_source(
    sources: Sequence[str], counted: Sequence[int], kept: Sequence[int]
) -> tuple[tuple[str, int, int], ...]:
    drafted = [sources[index] for index in counted]
    accepted = [sources[index] for index in kept]
    return tuple(
        (source, drafted.count(source), accepted.count(source)) for source in dict.fromkeys(drafted)
    )
