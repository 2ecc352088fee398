# SPDX-License-Identifier: Apache-2.0
"""Order of a step's sequences: those that share blocks are neighbours.

Attention reads the common prefix of neighbouring sequences once (`ops/cascade_append_attention`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from fdspec.core import SequencePlan

_blocks_of = attrgetter("block_ids")


def sharers_together(sequences: Sequence[SequencePlan]) -> tuple[SequencePlan, ...]:
    """The same sequences, those with the same first block behind the first of them.

    Among those, the more blocks two have in common the closer they are, so that they make a tree of
    prefixes. Sequences that share nothing stay in their order.
    """
    by_first_block: dict[int, list[SequencePlan]] = {}
    for sequence in sequences:
        by_first_block.setdefault(sequence.block_ids[0], []).append(sequence)
    if len(by_first_block) == len(sequences):
        return tuple(sequences)
    return tuple(
        sequence
        for sharers in by_first_block.values()
        for sequence in (sharers if len(sharers) == 1 else sorted(sharers, key=_blocks_of))
    )
