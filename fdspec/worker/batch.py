# SPDX-License-Identifier: Apache-2.0
"""Flattens a StepPlan into the arrays that the model's ops take.

Owns the arithmetic of rows, slots and positions; pure numpy, never computes a model. The model
runner calls it once a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

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
    num_sequences = len(sequences)
    starts = np.array([sequence.start for sequence in sequences], dtype=np.int32)
    num_rows = np.array([sequence.num_rows for sequence in sequences], dtype=np.int64)
    row_splits = _splits(num_rows, np.int32)
    block_table = _block_table([sequence.block_ids for sequence in sequences])
    # For each row: its sequence, and which of the sequence's rows it is.
    owner = np.repeat(np.arange(num_sequences), num_rows)
    offsets = np.arange(len(owner), dtype=np.int32) - row_splits[owner]
    places = starts[owner] + offsets
    slots = block_table[owner, places // block_size].astype(np.int64) * block_size
    slots += places % block_size
    batch = Batch(
        token_ids=_token_ids(sequences, vocab_size),
        positions=places,
        slots=slots,
        block_table=block_table,
        row_splits=row_splits,
        context_lens=starts,
        parents=offsets - np.int32(1),
        **_logit_rows(sequences, row_splits, num_rows),
    )
    for sequence, start, end in zip(sequences, row_splits[:-1], row_splits[1:], strict=True):
        if sequence.draft is not None and not sequence.draft.is_chain:
            rows = slice(start, end)
            _place_tree(sequence, sequence.draft, batch.positions[rows], batch.parents[rows])
    return batch


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


def _splits(counts: NDArray[np.int64], dtype: type[np.integer[Any]]) -> NDArray[Any]:
    """[counts + 1], where each share of a concatenation begins and the last one ends."""
    splits = np.zeros(len(counts) + 1, dtype=dtype)
    np.cumsum(counts, out=splits[1:])
    return splits


def _block_table(block_ids: list[tuple[int, ...]]) -> NDArray[np.int32]:
    widths = [len(blocks) for blocks in block_ids]
    table = np.zeros((len(widths), max(widths, default=0)), dtype=np.int32)
    is_used = np.arange(table.shape[1]) < np.array(widths, dtype=np.int64)[:, None]
    table[is_used] = np.fromiter(chain.from_iterable(block_ids), np.int32, sum(widths))
    return table


def _token_ids(sequences: tuple[SequencePlan, ...], vocab_size: int) -> NDArray[np.int32]:
    pieces = []
    for sequence in sequences:
        pieces.append(sequence.history[sequence.start :])
        if sequence.draft is not None:
            guessed = sequence.draft.tokens
            known = (guessed >= 0) & (guessed < vocab_size)
            pieces.append(np.where(known, guessed, 0).astype(np.int32))
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32)


def _logit_rows(
    sequences: tuple[SequencePlan, ...],
    row_splits: NDArray[np.int32],
    num_rows: NDArray[np.int64],
) -> dict[str, NDArray[np.int64]]:
    first = np.array([sequence.first_logit_row for sequence in sequences], dtype=np.int64)
    counts = num_rows - first
    splits = _splits(counts, np.int64)
    rows = np.arange(splits[-1]) + np.repeat(row_splits[:-1] + first - splits[:-1], counts)
    return {"logit_rows": rows, "logit_splits": splits}


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
