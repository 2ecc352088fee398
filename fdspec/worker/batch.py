# SPDX-License-Identifier: Apache-2.0
"""Flattens a StepPlan into the arrays that the model's ops take.

Owns the arithmetic of rows, slots and positions; pure numpy, never computes a model. The model
runner calls it once a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdspec.core.draft import Draft
from fdspec.core.plan import SequencePlan, StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One step's rows, sequence after sequence.

    Attributes:
        token_ids: [rows] int32, each inside the vocabulary.
        positions: [rows] int32, rotary positions.
        slots: [rows] int64, where a row's key and value go: block * block_size + offset.
        block_table: [sequences, max blocks] int32, padded with 0.
        row_splits: [sequences + 1] int32; sequence i owns rows row_splits[i]..row_splits[i + 1].
        context_lens: [sequences] int32, tokens in the cache before this step.
        parents: [rows] int32, row inside the sequence before this one; -1 is the last cached token.
        logit_rows: [logit rows] int64, rows whose logits are wanted.
        logit_splits: [sequences + 1] int64, the same division of logit_rows.
    """

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    slots: NDArray[np.int64]
    block_table: NDArray[np.int32]
    row_splits: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    parents: NDArray[np.int32]
    logit_rows: NDArray[np.int64]
    logit_splits: NDArray[np.int64]


def build_batch(plan: StepPlan, *, block_size: int, vocab_size: int) -> Batch:
    """Arrays of a step. Does not modify the plan.

    Args:
        plan: at least one row for each sequence.
        block_size: tokens in a block.
        vocab_size: rows of the embedding. A draft token outside is computed as token 0: proposers
            may guess anything, and such a guess never equals the target's token.
    """
    sequences = plan.sequences
    num_rows = [sequence.num_rows for sequence in sequences]
    row_splits = np.zeros(len(sequences) + 1, dtype=np.int32)
    np.cumsum(num_rows, out=row_splits[1:])
    total = int(row_splits[-1])
    token_ids = np.empty(total, dtype=np.int32)
    positions = np.empty(total, dtype=np.int32)
    slots = np.empty(total, dtype=np.int64)
    parents = np.empty(total, dtype=np.int32)
    width = max((len(sequence.block_ids) for sequence in sequences), default=0)
    block_table = np.zeros((len(sequences), width), dtype=np.int32)
    for index, sequence in enumerate(sequences):
        rows = slice(int(row_splits[index]), int(row_splits[index + 1]))
        block_table[index, : len(sequence.block_ids)] = sequence.block_ids
        token_ids[rows] = _tokens(sequence, vocab_size)
        row_slots = np.arange(sequence.start, sequence.start + sequence.num_rows)
        slots[rows] = (
            block_table[index, row_slots // block_size].astype(np.int64) * block_size
            + row_slots % block_size
        )
        positions[rows] = row_slots
        parents[rows] = np.arange(-1, sequence.num_rows - 1)
        if sequence.draft is not None and not sequence.draft.is_chain:
            _place_tree(sequence, sequence.draft, positions[rows], parents[rows])
    logit_rows = [
        np.arange(start + sequence.first_logit_row, start + rows)
        for sequence, start, rows in zip(sequences, row_splits.tolist(), num_rows, strict=False)
    ]
    logit_splits = np.zeros(len(sequences) + 1, dtype=np.int64)
    np.cumsum([len(rows) for rows in logit_rows], out=logit_splits[1:])
    return Batch(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        block_table=block_table,
        row_splits=row_splits,
        context_lens=np.array([sequence.start for sequence in sequences], dtype=np.int32),
        parents=parents,
        logit_rows=np.concatenate(logit_rows) if logit_rows else np.empty(0, dtype=np.int64),
        logit_splits=logit_splits,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """KV entries to move after a step: accepted tree rows that are not at their position's slot.

    Attributes:
        sources: [moves] int64 slots.
        destinations: [moves] int64 slots; a destination never comes later as a source.
    """

    sources: NDArray[np.int64]
    destinations: NDArray[np.int64]


def plan_moves(sequence: SequencePlan, kept: tuple[int, ...], *, block_size: int) -> Moves | None:
    """What `commit` has to move for one sequence, None if everything is in place.

    Args:
        sequence: its plan of the step.
        kept: indices into the draft of the accepted tokens, in path order.
        block_size: tokens in a block.
    """
    accepted = np.array(kept, dtype=np.int64)
    targets = np.arange(len(kept), dtype=np.int64)
    moved = accepted != targets
    if not moved.any():
        return None
    first = sequence.start + sequence.num_committed_rows
    blocks = np.array(sequence.block_ids, dtype=np.int64)

    def slots_of(indices: NDArray[np.int64]) -> NDArray[np.int64]:
        places = first + indices
        return blocks[places // block_size] * block_size + places % block_size

    # Parents precede children, so kept[i] >= i: moving in path order never overwrites a source.
    return Moves(slots_of(accepted[moved]), slots_of(targets[moved]))


def _tokens(sequence: SequencePlan, vocab_size: int) -> NDArray[np.int32]:
    committed = sequence.history[sequence.start :]
    if sequence.draft is None:
        return committed
    guessed = sequence.draft.tokens
    known = (guessed >= 0) & (guessed < vocab_size)
    return np.concatenate([committed, np.where(known, guessed, 0).astype(np.int32)])


def _place_tree(
    sequence: SequencePlan,
    draft: Draft,
    positions: NDArray[np.int32],
    parents: NDArray[np.int32],
) -> None:
    """Positions and parents of a tree's rows, in place: siblings share a position."""
    first = sequence.num_committed_rows
    last_position = sequence.start + first - 1
    for index, parent in enumerate(draft.parents.tolist()):
        parents[first + index] = first - 1 if parent < 0 else first + parent
        above = last_position if parent < 0 else positions[first + parent]
        positions[first + index] = above + 1
