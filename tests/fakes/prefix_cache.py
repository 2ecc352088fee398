# SPDX-License-Identifier: Apache-2.0
"""PrefixCache: a KV cache of names of prefixes, to see that plans never mix sequences up."""

from __future__ import annotations

from collections.abc import Sequence

from fdspec.core import SequencePlan, StepPlan, Verdict

Content = tuple[int, ...] | None


class PrefixCache:
    """Each slot holds the tokens of a sequence up to the one that was written there."""

    def __init__(self, num_blocks: int, block_size: int, num_slots: int = 0) -> None:
        self._block_size = block_size
        self._blocks: list[list[Content]] = [[None] * block_size for _ in range(num_blocks)]
        self._swapped: list[list[Content]] = [[] for _ in range(num_slots)]

    def execute(self, plan: StepPlan) -> None:
        """Copy blocks, check that each sequence finds its own tokens, then write its rows."""
        for block_id, slot in plan.swap_outs:
            self._swapped[slot] = list(self._blocks[block_id])
        for source, destination in plan.copies:
            self._blocks[destination] = list(self._blocks[source])
        for slot, block_id in plan.swap_ins:
            self._blocks[block_id] = list(self._swapped[slot])
        for sequence in plan.sequences:
            tokens = tuple(sequence.history.tolist())
            for position in range(sequence.start):
                found = self._slot(sequence, position)
                assert found == tokens[: position + 1], f"{sequence}: {position} holds {found}"
        for sequence in plan.sequences:
            tokens = tuple(sequence.history.tolist())
            for position in range(sequence.start, len(tokens)):
                self._write(sequence, position, tokens[: position + 1])
            for row in range(sequence.num_draft_rows):
                self._write(sequence, len(tokens) + row, None)

    def commit(self, plan: StepPlan, verdicts: Sequence[Verdict]) -> None:
        """Put accepted rows to their positions."""
        kept = {verdict.sequence_id: verdict.kept for verdict in verdicts}
        for sequence in plan.sequences:
            tokens = tuple(sequence.history.tolist())
            for index in kept.get(sequence.sequence_id, ()):
                assert sequence.draft is not None
                tokens = (*tokens, int(sequence.draft.tokens[index]))
                self._write(sequence, len(tokens) - 1, tokens)

    def _slot(self, sequence: SequencePlan, position: int) -> Content:
        block_id = sequence.block_ids[position // self._block_size]
        return self._blocks[block_id][position % self._block_size]

    def _write(self, sequence: SequencePlan, position: int, content: Content) -> None:
        block_id = sequence.block_ids[position // self._block_size]
        self._blocks[block_id][position % self._block_size] = content
