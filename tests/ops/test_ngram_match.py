# SPDX-License-Identifier: Apache-2.0
"""ngram_match: the documented match, on hand-worked and on random sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdspec.ops import ngram_match
from fdspec.ops.ngram_match import reference_ngram_match
from tests.ops.support import call

BACKENDS = ("reference", "portable")  # one kernel for all levels


def draft(
    backend: str, sequence: list[int], limit: int, max_ngram: int = 3, min_ngram: int = 1
) -> list[int]:
    """The draft of one sequence."""
    tokens, splits = call(
        backend,
        "ngram_match",
        "ngram_match",
        np.array(sequence, np.int32),
        np.array([0, len(sequence)]),
        np.array([limit], np.int32),
        max_ngram=max_ngram,
        min_ngram=min_ngram,
    )
    assert splits.tolist() == [0, len(tokens)]
    assert tokens.dtype == np.int32
    assert splits.dtype == np.int64
    return list(map(int, tokens))


CASES = {
    # 1 2 occurred at the start, and 7 8 followed.
    "simple": ([1, 2, 7, 8, 9, 1, 2], 2, [7, 8]),
    # 5 1 2 is longer than the more recent 1 2.
    "longest_first": ([5, 1, 2, 7, 1, 2, 8, 5, 1, 2], 1, [7]),
    # Both have two tokens after them: the more recent one wins.
    "most_recent": ([1, 2, 7, 8, 1, 2, 5, 6, 1, 2], 2, [5, 6]),
    # The recent one has only four tokens after it.
    "enough_room": ([1, 2, 7, 8, 9, 1, 2, 5, 6, 1, 2], 5, [7, 8, 9, 1, 2]),
    # No match has ten tokens after it: the one with most, and the text goes on with itself.
    "period": ([4, 1, 2, 3, 1, 2], 10, [3, 1, 2, 3, 1, 2, 3, 1, 2, 3]),
    "repetition": ([9, 6, 6, 6], 5, [6, 6, 6, 6, 6]),
    "no_match": ([1, 2, 3, 4], 3, []),
    "nothing_wanted": ([1, 1, 1], 0, []),
    "negative_limit": ([1, 1, 1], -1, []),
    "one_token": ([1], 3, []),
    "no_tokens": ([], 3, []),
}


@pytest.mark.parametrize(("sequence", "limit", "expected"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend: str, sequence: list[int], limit: int, expected: list[int]) -> None:
    assert draft(backend, sequence, limit) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_short_ngrams_are_not_looked_up(backend: str) -> None:
    sequence = [1, 2, 7, 3, 2]
    assert draft(backend, sequence, 2, min_ngram=1) == [7, 3]
    assert draft(backend, sequence, 2, min_ngram=2) == []


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=40), max_size=4),
    st.integers(0, 9),
    st.integers(1, 3),
    st.integers(0, 4),
)
def test_equals_the_definition(
    sequences: list[list[int]], limit: int, min_ngram: int, extra: int
) -> None:
    arguments = (
        np.array([token for sequence in sequences for token in sequence], np.int32),
        np.cumsum([0, *map(len, sequences)]),
        np.array([limit + index for index in range(len(sequences))], np.int32),
    )
    options = {"max_ngram": min_ngram + extra, "min_ngram": min_ngram}
    expected = reference_ngram_match(*arguments, **options)
    for actual, other in zip(ngram_match(*arguments, **options), expected, strict=True):
        np.testing.assert_array_equal(actual, other)


@pytest.mark.parametrize("length", [64, 65, 66, 127, 128, 129, 300])
@pytest.mark.parametrize("at", [0, 1, 60, 62])
def test_matches_at_any_place(length: int, at: int) -> None:
    sequence = list(range(100, 100 + length))
    sequence[at] = sequence[-1]
    assert draft("portable", sequence, 1) == [sequence[at + 1]]


def test_copied_text_is_drafted() -> None:
    text = np.random.default_rng(0).integers(0, 5000, 400).tolist()
    copied = text + text[:200]
    assert draft("portable", copied, 8) == text[200:208]


def test_errors_name_the_argument() -> None:
    tokens, splits, limits = np.zeros(3, np.int32), np.array([0, 3]), np.ones(1, np.int32)
    with pytest.raises(TypeError, match="^tokens"):
        ngram_match(tokens.astype(np.int64), splits, limits, max_ngram=3, min_ngram=1)
    with pytest.raises(ValueError, match="^splits"):
        ngram_match(tokens, np.array([0, 2]), limits, max_ngram=3, min_ngram=1)
    with pytest.raises(ValueError, match="^splits"):
        ngram_match(tokens, np.array([0, 4, 3]), limits, max_ngram=3, min_ngram=1)
    with pytest.raises(ValueError, match="^max_draft"):
        ngram_match(tokens, splits, np.ones(2, np.int32), max_ngram=3, min_ngram=1)
    for sizes in ((3, 0), (1, 2)):
        with pytest.raises(ValueError, match="^min_ngram, max_ngram"):
            ngram_match(tokens, splits, limits, max_ngram=sizes[0], min_ngram=sizes[1])
