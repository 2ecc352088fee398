# SPDX-License-Identifier: Apache-2.0
"""verify_chain and verify_tree: hand-worked drafts, and the walk down random trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdspec.ops import Verification, verify_chain, verify_tree
from fdspec.ops.verify import reference_verify_tree
from tests.ops.support import call

BACKENDS = ("reference", "portable")  # one kernel for all levels


def int32(values: list[int]) -> Any:
    return np.array(values, np.int32)


def as_lists(result: Verification) -> tuple[list[int], ...]:
    assert [array.dtype for array in result] == [np.int32, np.int64, np.int32, np.int32]
    return tuple(array.tolist() for array in result)


@pytest.mark.parametrize("backend", BACKENDS)
def test_chains_by_hand(backend: str) -> None:
    # Drafts: all right; wrong at 1; none; wrong at 0 though right later; ids out of the vocabulary.
    drafts = [[5, 6], [7, 1, 8], [], [9, 4], [-1, 10**9]]
    targets = [[5, 6, 3], [7, 2, 8, 0], [4], [8, 4, 1], [1, 2, 3]]
    result = call(
        backend,
        "verify",
        "verify_chain",
        int32(sum(drafts, [])),
        int32(sum(targets, [])),
        np.cumsum([0, *map(len, drafts)]),
    )
    assert as_lists(result) == ([0, 1, 0], [0, 2, 3, 3, 3, 3], [2, 1, 0, 0, 0], [3, 2, 4, 8, 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_trees_by_hand(backend: str) -> None:
    # Two branches below the root, equal siblings, and a match whose parent was refused.
    tokens = [5, 6, 7, 8, 8, 9]
    parents = [-1, -1, 0, 1, 1, 4]
    targets = [6, 0, 8, 0, 9, 1, 2]
    result = call(
        backend,
        "verify",
        "verify_tree",
        int32(tokens),
        int32(parents),
        int32(targets),
        np.array([0, 6]),
    )
    # Down to 6 (index 1), to the first 8 (index 3), whose own target 9 has no child there.
    assert as_lists(result) == ([1, 3], [0, 2], [2], [9])


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_sequences(backend: str) -> None:
    none = int32([])
    result = call(backend, "verify", "verify_chain", none, none, np.array([0]))
    assert as_lists(result) == ([], [0], [], [])
    result = call(backend, "verify", "verify_tree", none, none, none, np.array([0]))
    assert as_lists(result) == ([], [0], [], [])


def test_more_than_512_draft_tokens() -> None:
    tokens = np.arange(1000, dtype=np.int32)
    targets = np.append(tokens, np.int32(77))
    result = verify_chain(tokens, targets, np.array([0, 1000]))
    assert result.accepted.tolist() == list(range(1000))
    assert result.next_tokens.tolist() == [77]


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Tokens, parents and targets of one sequence."""
    size = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, index - 1)) for index in range(size)]
    ids = st.integers(0, 2)
    return (
        [draw(ids) for _ in range(size)],
        parents,
        [draw(ids) for _ in range(size + 1)],
    )


@settings(deadline=None)
@given(st.lists(trees(), max_size=4))
def test_equals_the_definition_and_sequential_decoding(
    sequences: list[tuple[list[int], list[int], list[int]]],
) -> None:
    columns = [sum((sequence[i] for sequence in sequences), []) for i in range(3)]
    splits = np.cumsum([0, *(len(tokens) for tokens, _, _ in sequences)])
    arguments = (*map(int32, columns), splits)
    result = verify_tree(*arguments)
    assert as_lists(result) == as_lists(reference_verify_tree(*arguments))
    for index, (tokens, parents, targets) in enumerate(sequences):
        path = result.accepted[result.splits[index] : result.splits[index + 1]].tolist()
        assert [parents[node] for node in path] == [-1, *path][: len(path)]
        rows = [-1, *path]
        emitted = [targets[row + 1] for row in rows]
        assert emitted == [*(tokens[node] for node in path), int(result.next_tokens[index])]


def test_errors_name_the_argument() -> None:
    tokens, parents, targets = int32([1, 2]), int32([-1, 0]), int32([1, 2, 3])
    splits = np.array([0, 2])
    with pytest.raises(TypeError, match="^draft_tokens"):
        verify_chain(tokens.astype(np.int64), targets, splits)
    with pytest.raises(ValueError, match="^targets"):
        verify_chain(tokens, targets[:2], splits)
    with pytest.raises(ValueError, match="^draft_splits"):
        verify_chain(tokens, targets, np.array([0, 1]))
    with pytest.raises(ValueError, match="^parents: expected shape"):
        verify_tree(tokens, parents[:1], targets, splits)
    for bad in ([-2, 0], [0, 0], [-1, 1]):
        with pytest.raises(ValueError, match=r"^parents\["):
            verify_tree(tokens, int32(bad), targets, splits)
