# SPDX-License-Identifier: Apache-2.0
"""Flattens a StepPlan into the arrays that the model's ops take.

Owns the arithmetic of rows, slots and positions; never decides what to compute. The model runner
calls it once a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdspec.core.plan import SequencePlan, StepPlan
from fdspec.ops import StepProgram


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

    It comes between two runs of the model, which have filled the caches with weights: plain lists
    and one conversion at the end touch less code and memory than a dozen numpy functions.

    Args:
        plan: at least one row for each sequence.
        block_size: tokens in a block.
        vocab_size: rows of the embedding. A draft token outside is computed as token 0: proposers
            may guess anything, and such a guess never equals the target's token.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    context_lens: list[int] = []
    parents: list[int] = []
    logit_rows: list[int] = []
    row_splits, logit_splits = [0], [0]
    for sequence in plan.sequences:
        start, draft = sequence.start, sequence.draft
        committed = sequence.history[start:].tolist()
        num_rows = num_committed = len(committed)
        token_ids += committed
        positions += range(start, start + num_committed)
        parents += range(-1, num_committed - 1)
        if draft is not None:
            drafted = draft.tokens.tolist()
            num_rows += len(drafted)
            token_ids += [token if 0 <= token < vocab_size else 0 for token in drafted]
            draft_parents = draft.parents.tolist()
            parents += [num_committed + parent for parent in draft_parents]
            positions += _draft_positions(draft_parents, start + num_committed - 1)
        slots += slots_of(sequence.block_ids, range(start, start + num_rows), block_size)
        context_lens.append(start)
        end = row_splits[-1] + num_rows
        logit_rows += range(row_splits[-1] + sequence.first_logit_row, end)
        row_splits.append(end)
        logit_splits.append(len(logit_rows))
    return Batch(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int64),
        block_table=block_table_of([sequence.block_ids for sequence in plan.sequences]),
        row_splits=np.array(row_splits, np.int32),
        context_lens=np.array(context_lens, np.int32),
        parents=np.array(parents, np.int32),
        logit_rows=np.array(logit_rows, np.int64),
        logit_splits=np.array(logit_splits, np.int64),
    )


def run_program(
    program: StepProgram,
    batch: Batch,
    out: NDArray[Any],
    block_maxima: NDArray[np.float32] | None = None,
    *,
    hidden: NDArray[np.float32] | None = None,
    hidden_out: NDArray[np.float32] | None = None,
) -> None:
    """Compute a step; what follows `batch` is as in `StepProgram.run`."""
    program.run(
        batch.token_ids,
        batch.positions,
        slots=batch.slots,
        block_table=batch.block_table,
        row_splits=batch.row_splits,
        context_lens=batch.context_lens,
        parents=batch.parents,
        selected_rows=batch.logit_rows,
        out=out,
        block_maxima=block_maxima,
        hidden=hidden,
        hidden_out=hidden_out,
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

    def slots_at(indices: NDArray[np.int64]) -> NDArray[np.int64]:
        places = first + indices
        return blocks[places // block_size] * block_size + places % block_size

    # Parents precede children, so kept[i] >= i: moving in path order never overwrites a source.
    return Moves(slots_at(accepted[moved]), slots_at(targets[moved]))


def _draft_positions(parents: list[int], last_position: int) -> list[int]:
    """Position of each draft token, one below its parent's; siblings share a position."""
    positions: list[int] = []
    for parent in parents:
        positions.append(1 + (last_position if parent < 0 else positions[parent]))
    return positions


def slots_of(block_ids: tuple[int, ...], places: range, block_size: int) -> list[int]:
    """Cache slots of consecutive places of a sequence."""
    if len(places) == 1:
        block, offset = divmod(places[0], block_size)
        return [block_ids[block] * block_size + offset]
    slots: list[int] = []
    for block in range(places.start // block_size, -(-places.stop // block_size)):
        first = block * block_size
        base = block_ids[block] * block_size - first
        slots += range(base + max(first, places.start), base + min(first + block_size, places.stop))
    return slots


def block_table_of(block_ids: list[tuple[int, ...]]) -> NDArray[np.int32]:
    """[sequences, most blocks], padded with 0."""
    width = max(map(len, block_ids), default=0)
    padded = [[*blocks, *[0] * (width - len(blocks))] for blocks in block_ids]
    return np.array(padded, np.int32).reshape(len(block_ids), width)
