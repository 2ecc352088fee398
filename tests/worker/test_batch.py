# SPDX-License-Identifier: Apache-2.0
"""Rows, slots, positions and parents of a step; no model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdspec.core.draft import Draft
from fdspec.core.plan import SequencePlan, StepPlan
from fdspec.core.sampling_params import SamplingParams
from fdspec.worker.batch import build_batch, plan_moves


def sequence(
    start: int,
    history: list[int],
    blocks: tuple[int, ...],
    draft: Draft | None = None,
    samples: bool = True,
    name: str = "a",
    **params,
) -> SequencePlan:
    return SequencePlan(
        sequence_id=(name, 0),
        start=start,
        history=np.array(history, dtype=np.int32),
        num_prompt=len(history),
        draft=draft,
        block_ids=blocks,
        params=SamplingParams(**params),
        samples=samples,
    )


def tree(tokens: list[int], parents: list[int]) -> Draft:
    return Draft(
        ("a", 0), np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32), "test"
    )


def build(*sequences: SequencePlan, block_size: int = 4, vocab_size: int = 100):
    return build_batch(StepPlan(1, sequences), block_size=block_size, vocab_size=vocab_size)


def test_prompt_chunk_decode_and_chain_together():
    batch = build(
        sequence(2, [10, 11, 12, 13, 14], (7, 1), samples=False),
        sequence(3, [20, 21, 22, 23], (2,), name="b"),
        sequence(4, [30, 31, 32, 33, 34], (9, 5), Draft.chain(("c", 0), [35, 36], "t"), name="c"),
    )
    assert batch.token_ids.tolist() == [12, 13, 14, 23, 34, 35, 36]
    assert batch.positions.tolist() == [2, 3, 4, 3, 4, 5, 6]
    assert batch.slots.tolist() == [30, 31, 4, 11, 20, 21, 22]
    assert batch.block_table.tolist() == [[7, 1], [2, 0], [9, 5]]
    assert batch.row_splits.tolist() == [0, 3, 4, 7]
    assert batch.context_lens.tolist() == [2, 3, 4]
    assert batch.parents.tolist() == [-1, 0, 1, -1, -1, 0, 1]
    # A chunk in the middle of a prompt has no logits; a chain has one row for each draft and one.
    assert batch.logit_rows.tolist() == [3, 4, 5, 6]
    assert batch.logit_splits.tolist() == [0, 0, 1, 4]
    for array, dtype in (
        (batch.token_ids, np.int32),
        (batch.positions, np.int32),
        (batch.slots, np.int64),
        (batch.block_table, np.int32),
        (batch.row_splits, np.int32),
        (batch.context_lens, np.int32),
        (batch.parents, np.int32),
    ):
        assert array.dtype == dtype
        assert array.flags.c_contiguous


def test_tree_rows_have_the_position_of_their_depth_and_the_slot_of_their_row():
    #  last -- 50 -- 52 -- 54
    #      \-- 51 -- 53
    draft = tree([50, 51, 52, 53, 54], [-1, -1, 0, 1, 2])
    batch = build(sequence(3, [1, 2, 3, 4, 5], (6, 8, 2), draft))
    assert batch.token_ids.tolist() == [4, 5, 50, 51, 52, 53, 54]
    assert batch.positions.tolist() == [3, 4, 5, 5, 6, 6, 7]
    assert batch.slots.tolist() == [27, 32, 33, 34, 35, 8, 9]
    assert batch.parents.tolist() == [-1, 0, 1, 1, 2, 3, 4]
    assert batch.logit_rows.tolist() == [1, 2, 3, 4, 5, 6]


def test_prompt_logprobs_want_logits_of_every_prompt_row():
    batch = build(sequence(1, [1, 2, 3, 4], (0,), samples=False, prompt_logprobs=0))
    assert batch.logit_rows.tolist() == [0, 1, 2]


def test_drafts_outside_the_vocabulary_are_computed_as_token_0():
    draft = Draft.chain(("a", 0), [99, 100, -1, 2**31 - 1, -(2**31)], "wild")
    batch = build(sequence(1, [5, 6], (0, 1), draft))
    assert batch.token_ids.tolist() == [6, 99, 0, 0, 0, 0]


def test_empty_plan():
    batch = build()
    assert batch.token_ids.tolist() == []
    assert batch.row_splits.tolist() == [0]
    assert batch.logit_splits.tolist() == [0]


@given(st.lists(st.integers(-1, 6), min_size=1, max_size=8), st.integers(0, 9), st.integers(1, 4))
def test_any_tree(parents, start, committed):
    parents = [min(parent, index - 1) for index, parent in enumerate(parents)]
    draft = tree(list(range(len(parents))), parents)
    history = list(range(start + committed))
    blocks = tuple(range(20, 40))
    batch = build(sequence(start, history, blocks, draft), block_size=2)
    rows = committed + len(parents)
    # Every row has its own slot; a row's position is one more than its parent's.
    assert len(set(batch.slots.tolist())) == rows
    for row in range(rows):
        parent = int(batch.parents[row])
        above = start - 1 if parent < 0 else int(batch.positions[parent])
        assert batch.positions[row] == above + 1
        assert parent < row


@pytest.mark.parametrize("kept", [(), (0,), (0, 1, 2)])
def test_chains_move_nothing(kept):
    plan = sequence(3, [1, 2, 3, 4], (0, 1, 2), tree([7, 8, 9], [-1, 0, 1]))
    assert plan_moves(plan, kept, block_size=4) is None


def test_accepted_tree_rows_move_to_their_positions():
    plan = sequence(3, [1, 2, 3, 4], (5, 9, 2), tree([7, 8, 9, 6], [-1, -1, 1, 2]))
    moves = plan_moves(plan, (1, 2, 3), block_size=4)
    assert moves is not None
    # Draft i is in slot 4 + i of the sequence, which starts block 9.
    assert moves.sources.tolist() == [37, 38, 39]
    assert moves.destinations.tolist() == [36, 37, 38]


@given(st.lists(st.integers(0, 12), max_size=8, unique=True))
def test_moves_never_read_what_they_overwrote(kept):
    kept = tuple(sorted(kept))
    plan = sequence(0, [1], tuple(range(9)), tree([0] * 13, list(range(-1, 12))))
    moves = plan_moves(plan, kept, block_size=2)
    if moves is None:
        assert kept == tuple(range(len(kept)))
        return
    for index, destination in enumerate(moves.destinations.tolist()):
        assert destination not in moves.sources[index + 1 :].tolist()
