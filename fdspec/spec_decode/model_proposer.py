# SPDX-License-Identifier: Apache-2.0
"""ModelProposer: drafts chains with a model that keeps entries of its own in the KV blocks.

Owns what of committed tokens that model has not seen yet. Never runs the target and never takes or
gives back a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdspec.core import Draft, DraftContext, ModelOutput, SequenceId, StepPlan, Verdict
from fdspec.core.draft import is_shadow
from fdspec.core.drafting import DraftModel, DraftShare


class _Rows(NamedTuple):
    """Rows that the target has computed and kept in one step, from slot `start` on."""

    start: int
    tokens: NDArray[np.int32]
    block_ids: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class _Chain:
    """A draft in the making."""

    __slots__ = ("block_ids", "length", "sequence_id", "start", "tokens")

    def __init__(
        self, sequence_id: SequenceId, start: int, length: int, block_ids: tuple[int, ...]
    ) -> None:
        """Begin.

        Args:
            sequence_id: whose draft.
            start: slot of the newest committed token.
            length: tokens to draft.
            block_ids: for slots 0 .. start + length - 1.
        """
        self.sequence_id = sequence_id
        self.start = start
        self.length = length
        self.block_ids = block_ids
        self.tokens: list[int] = []

    def next_share(self) -> DraftShare:
        """The row of the last drafted token."""
        count = len(self.tokens)
        tokens = np.array(self.tokens[-1:], np.int32)
        return DraftShare(self.start + count, tokens, self.block_ids, wants_next=True)


class ModelProposer:
    """Catches up with the target, then drafts greedily. Implements `core.protocols.Proposer`.

    In every block the drafting model's entries end where the target's do: for a sequence of n
    committed tokens these are slots 0 .. n - 2. What a step of the target added is computed at the
    beginning of the next `propose`, for all sequences, whether they draft or not: that is before
    `plan` can let anybody find the blocks, copy or swap them. So a prefix hit, a preemption, a swap
    or a handoff needs nothing but the blocks.

    One pass over the model does the catching up of all sequences and drafts the first token of
    each; every further token takes one more pass of one row a sequence. Entries of draft tokens go
    behind the committed ones, where the target's own rows will overwrite them, or to scratch blocks
    where the sequence has no block yet.
    """

    def __init__(
        self,
        model: DraftModel,
        num_speculative_tokens: int,
        *,
        source: str,
        catches_up_at_once: bool = False,
    ) -> None:
        """Start with an empty cache.

        Args:
            model: drafts.
            num_speculative_tokens: most tokens of a draft, at least 1.
            source: name of the drafts.
            catches_up_at_once: at the end of a step instead of the beginning of the next one. That
                takes a pass more where the next one drafts; but an engine that hands its blocks
                over does so in between.
        """
        assert num_speculative_tokens >= 1, num_speculative_tokens
        self._model = model
        self._num_speculative_tokens = num_speculative_tokens
        self._source = source
        self._catches_up_at_once = catches_up_at_once
        self._pending: dict[SequenceId, _Rows] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """A chain for each context that may have one."""
        if is_shadow(contexts):
            return []
        pending, self._pending = self._pending, {}
        scratch = list(self._model.scratch_block_ids)
        chains, shares = [], []
        for context in contexts:
            length = self._length(context)
            if length <= 0:
                continue
            rows = pending.pop(context.sequence_id, None)
            newest = len(context.tokens) - 1
            start, block_ids = newest, context.block_ids
            if rows is not None:
                assert rows.end == newest, f"{context.sequence_id}: {rows.end} of {newest} tokens"
                start = rows.start
                # Where another block has taken the place of one that was equal to it, that one
                # still holds the entries which these rows have to be written behind.
                block_ids = rows.block_ids[: len(block_ids)] + block_ids[len(rows.block_ids) :]
            block_ids = self._with_scratch(block_ids, newest + length, scratch)
            chains.append(_Chain(context.sequence_id, newest, length, block_ids))
            tokens = context.tokens[start:]
            shares.append(DraftShare(start, tokens, block_ids, wants_next=True))
        shares += [share for rows in pending.values() if (share := self._catch_up(rows))]
        if shares:
            self._draft(chains, shares)
        return [Draft.chain(c.sequence_id, c.tokens, self._source) for c in chains]

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Note what the target has computed and kept."""
        by_id = {verdict.sequence_id: verdict for verdict in verdicts}
        for sequence in plan.sequences:
            tokens = sequence.history[sequence.start :]
            verdict = by_id.get(sequence.sequence_id)
            if verdict is not None and verdict.kept:
                tokens = np.append(tokens, np.array(verdict.tokens[:-1], np.int32))
            self._pending[sequence.sequence_id] = _Rows(sequence.start, tokens, sequence.block_ids)

        if self._catches_up_at_once:
            self.propose([])

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Nothing to drop: an ended sequence leaves blocks behind, whose rows are still to do."""

    def _length(self, context: DraftContext) -> int:
        if not context.block_ids:
            return 0
        room = self._model.max_positions - (len(context.tokens) - 1)
        return min(context.max_draft, self._num_speculative_tokens, room)

    def _with_scratch(
        self, block_ids: tuple[int, ...], num_slots: int, scratch: list[int]
    ) -> tuple[int, ...]:
        """So many slots, those beyond the sequence's own blocks in scratch blocks."""
        missing = -(-num_slots // self._model.block_size) - len(block_ids)
        return block_ids + tuple(scratch.pop() for _ in range(missing))

    def _catch_up(self, rows: _Rows) -> DraftShare | None:
        """The rows of a sequence that is not drafted for, as far as the model goes."""
        tokens = rows.tokens[: max(self._model.max_positions - rows.start, 0)]
        if not len(tokens):
            return None
        return DraftShare(rows.start, tokens, rows.block_ids, wants_next=False)

    def _draft(self, chains: list[_Chain], shares: list[DraftShare]) -> None:
        """Run the model until all chains are complete; the first shares are theirs."""
        running, hidden = chains, None
        while True:
            output = self._model.run(shares, hidden)
            for chain, token in zip(running, output.tokens.tolist(), strict=True):
                chain.tokens.append(token)
            left = [i for i, chain in enumerate(running) if len(chain.tokens) < chain.length]
            if not left:
                return
            running = [running[index] for index in left]
            shares = [chain.next_share() for chain in running]
            hidden = None if output.hidden is None else output.hidden[left]
