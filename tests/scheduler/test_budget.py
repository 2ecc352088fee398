# SPDX-License-Identifier: Apache-2.0
"""Drafts are cut to what is safe to compute; shares of a budget are fair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdspec.core import Draft
from fdspec.scheduler.budget import fair_shares, usable_prefix

KEY = ("r", 0)


def draft(tokens, parents=None):
    parents = range(-1, len(tokens) - 1) if parents is None else parents
    return Draft(KEY, np.array(tokens), np.array(list(parents), np.int64), "test")


@pytest.mark.parametrize(
    ("tokens", "parents", "max_tokens", "length"),
    [
        ([1, 2, 3], None, 9, 3),
        ([1, 2, 3], None, 2, 2),
        ([1, 2, 3], None, 0, 0),
        ([1, 2, 3], None, -4, 0),
        ([1, 10, 3], None, 9, 1),
        ([-1, 2], None, 9, 0),
        ([1, 2, 2**40], None, 9, 2),
        ([1, 2, 3], [-1, 0, 2], 9, 2),
        ([1, 2, 3], [-1, -2, 0], 9, 1),
        ([1, 2, 3], [0, 0, 0], 9, 0),
        ([1, 2, 3], [-1, -1, -1], 9, 3),
        ([1, 2, 3], [-1, 0], 9, 2),
        ([1], [-1, 0, 1], 9, 1),
        ([], [], 9, 0),
        ([1.0, 2.0], [-1, 0], 9, 0),
    ],
)
def test_usable_prefix(tokens, parents, max_tokens, length):
    usable = usable_prefix(draft(tokens, parents), max_tokens, vocab_size=10)
    if length == 0:
        assert usable is None
        return
    assert usable is not None
    assert usable.tokens.tolist() == tokens[:length]
    assert usable.tokens.dtype == usable.parents.dtype == np.int32
    assert len(usable.parents) == length
    assert all(-1 <= parent < index for index, parent in enumerate(usable.parents.tolist()))


@pytest.mark.parametrize(
    ("wants", "budget", "first", "shares"),
    [
        ([5, 5, 5], 100, 0, [5, 5, 5]),
        ([5, 5, 5], 9, 0, [3, 3, 3]),
        ([8, 1, 8], 9, 0, [4, 1, 4]),
        ([8, 8, 8], 4, 0, [2, 1, 1]),
        ([8, 8, 8], 4, 2, [1, 1, 2]),
        ([8, 8, 8], 2, 1, [0, 1, 1]),
        ([0, 8, 0], 3, 0, [0, 3, 0]),
        ([3, 4], 0, 0, [0, 0]),
        ([], 5, 0, []),
    ],
)
def test_fair_shares(wants, budget, first, shares):
    assert fair_shares(wants, budget, first) == shares


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(0, 100), st.integers(0, 7))
def test_fair_shares_are_max_min_fair(wants, budget, first):
    shares = fair_shares(wants, budget, first % len(wants))
    assert sum(shares) == min(sum(wants), budget)
    assert all(0 <= share <= want for share, want in zip(shares, wants, strict=True))
    unserved = [s for s, want in zip(shares, wants, strict=True) if s < want]
    if unserved:
        # Whoever got less than wanted has, but for the remainder, as much as anybody.
        assert min(unserved) >= max(shares) - 1


def test_the_remainder_goes_round():
    totals = [0, 0, 0]
    for step in range(3):
        totals = [t + s for t, s in zip(totals, fair_shares([5, 5, 5], 4, step % 3), strict=True)]
    assert totals == [4, 4, 4]
