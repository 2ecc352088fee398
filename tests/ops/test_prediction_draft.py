# SPDX-License-Identifier: Apache-2.0
"""prediction_draft: the place of an output in a predicted text, by hand and from the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdspec.ops import prediction_draft
from fdspec.ops.prediction_draft import reference_prediction_draft


def draft(prediction: list[int], output: list[int], limit: int) -> list[int]:
    arrays = np.array(prediction, np.int32), np.array(output, np.int32)
    found = list(prediction_draft(*arrays, max_draft=limit).tolist())
    assert found == reference_prediction_draft(*arrays, max_draft=limit).tolist()
    return found


TEXT = [1, 2, 3, 4, 5, 2, 3, 9, 8, 7]


@pytest.mark.parametrize(
    ("output", "limit", "expected"),
    [
        ([], 3, [1, 2, 3]),
        ([1], 3, [2, 3, 4]),
        ([4], 3, []),  # a single token that is not in its place
        ([1, 2, 3], 4, [4, 5, 2, 3]),
        ([6, 6, 6, 4, 5], 2, [2, 3]),  # after an insertion
        ([0, 0, 0, 0, 2, 3], 2, [9, 8]),  # the nearer of two places
        ([2, 3], 2, [4, 5]),
        ([5, 2, 3], 2, [9, 8]),  # the longer match
        ([9, 8, 7], 2, []),  # at the end
        ([1, 2, 3], 0, []),
        ([1, 2, 3], -1, []),
    ],
)
def test_by_hand(output: list[int], limit: int, expected: list[int]) -> None:
    assert draft(TEXT, output, limit) == expected


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 3), max_size=50),
    st.lists(st.integers(0, 3), max_size=50),
    st.integers(0, 8),
)
def test_equals_the_definition(prediction: list[int], output: list[int], limit: int) -> None:
    draft(prediction, output, limit)


def test_errors_name_the_argument() -> None:
    good = np.zeros(3, np.int32)
    with pytest.raises(TypeError, match="^prediction"):
        prediction_draft(np.zeros(3), good, max_draft=1)
    with pytest.raises(ValueError, match="^output"):
        prediction_draft(good, np.zeros((1, 3), np.int32), max_draft=1)
