# SPDX-License-Identifier: Apache-2.0
"""The n-gram proposer copies what followed; the naive one is silent."""

import numpy as np
import pytest

from fdspec.core import DraftContext
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.ngram import NgramProposer


def context(tokens, *, max_draft=10, name="r", num_prompt=3):
    return DraftContext((name, 0), np.array(tokens, np.int32), num_prompt, max_draft)


def drafts_of(contexts, length=4, **sizes):
    proposer = NgramProposer(length, **sizes)
    return {d.sequence_id[0]: d.tokens.tolist() for d in proposer.propose(contexts)}


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 1, 2], [3, 4, 5, 6]),
        ([1, 2, 9, 8, 1, 2, 3, 7, 5, 2, 3], [7, 5, 2, 3]),
        ([1, 2, 3, 4, 5], []),
        ([7, 7, 7], [7, 7, 7, 7]),
        ([1], []),
    ],
)
def test_drafts_follow_the_longest_match(tokens, expected):
    assert drafts_of([context(tokens)]).get("r", []) == expected


def test_a_longer_match_wins_over_a_nearer_one():
    tokens = [1, 2, 3, 50, 51, 9, 3, 60, 61, 1, 2, 3]
    assert drafts_of([context(tokens)], length=2, min_ngram_size=1) == {"r": [50, 51]}


def test_limits_of_each_sequence_and_of_the_proposer():
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    found = drafts_of(
        [
            context(tokens, name="short", max_draft=1),
            context([1, 2, 3], name="none"),
            context(tokens, name="zero", max_draft=0),
            context(tokens, name="long", max_draft=50),
        ],
        length=3,
    )
    assert found == {"short": [3], "long": [3, 4, 5]}


def test_late_sequences_get_as_much_as_early_ones():
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    found = drafts_of([context(tokens, name=str(i)) for i in range(40)])
    assert len(found) == 40 and all(draft == [3, 4, 5, 6] for draft in found.values())


def test_drafts_are_chains_that_name_their_source():
    (draft,) = NgramProposer(3).propose([context([1, 2, 3, 4, 1, 2])])
    assert draft.is_chain and draft.source == "ngram" and draft.sequence_id == ("r", 0)
    assert draft.tokens.dtype == np.int32


def test_proposers_without_contexts():
    assert NgramProposer(3).propose([]) == []
    assert NaiveProposer().propose([context([1, 1, 1, 1])]) == []
