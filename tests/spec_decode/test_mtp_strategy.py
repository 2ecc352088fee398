# SPDX-License-Identifier: Apache-2.0
"""A model that drafts, alone and with n-gram matches; the model is a counter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fdspec.core import DraftContext, ModelOutput, Verdict
from fdspec.core.drafting import DraftOutput, DraftShare
from fdspec.spec_decode.model_proposer import ModelProposer
from fdspec.spec_decode.mtp_strategy import NgramFirst, WithNgram
from fdspec.spec_decode.ngram import NgramProposer
from tests.spec_decode.plans import KEY, decoding, step_of

NO_OUTPUT = ModelOutput(np.zeros((0, 1), np.float32), np.zeros(1, np.int64))
BLOCK_SIZE = 4


class Counter:
    """Drafts the last token plus one, and notes what it was asked to compute."""

    block_size = BLOCK_SIZE
    scratch_block_ids = range(100, 104)

    def __init__(self, max_positions: int = 1000) -> None:
        self.max_positions = max_positions
        self.calls: list[list[DraftShare]] = []

    def run(self, shares: Sequence[DraftShare], hidden=None) -> DraftOutput:
        self.calls.append(list(shares))
        last = [share.tokens[-1] + 1 for share in shares if share.wants_next]
        return DraftOutput(np.array(last, np.int32))


def context(tokens: list[int], *, max_draft: int = 9, blocks: tuple[int, ...] | None = None):
    held = tuple(range(-(-len(tokens) // BLOCK_SIZE))) if blocks is None else blocks
    return DraftContext(KEY, np.array(tokens, np.int32), len(tokens) - 1, max_draft, block_ids=held)


def drafted(proposer, *contexts: DraftContext) -> list[list[int]]:
    return [draft.tokens.tolist() for draft in proposer.propose(contexts)]


def rows_of(shares: Sequence[DraftShare]) -> list[tuple[int, list[int], tuple[int, ...]]]:
    return [(share.start, share.tokens.tolist(), share.block_ids) for share in shares]


def test_one_pass_catches_up_and_drafts_the_first_token():
    model = Counter()
    proposer = ModelProposer(model, 3, source="mtp")
    # Two drafts were accepted, one was not.
    sequence = decoding((1, 2), [3], draft=[4, 5, 9])._replace(block_ids=(0, 1))
    verdict = Verdict(KEY, (4, 5, 6), (0, 1), 3)
    proposer.observe(step_of(sequence), NO_OUTPUT, [verdict])
    assert drafted(proposer, context([1, 2, 3, 4, 5, 6])) == [[7, 8, 9]]
    assert [rows_of(call) for call in model.calls] == [
        [(2, [3, 4, 5, 6], (0, 1))],
        [(6, [7], (0, 1))],
        [(7, [8], (0, 1))],
    ]
    assert drafted(proposer) == [] and len(model.calls) == 3


def test_drafts_beyond_the_blocks_go_to_scratch_blocks():
    model = Counter()
    proposer = ModelProposer(model, 6, source="mtp")
    # The newest token of the first has no block yet; the second has room for one more.
    other = context([1, 2, 3, 4, 5, 6, 7], blocks=(7, 8))._replace(sequence_id=("other", 0))
    drafts = drafted(proposer, context([1, 2, 3, 4, 5], blocks=(3,)), other)
    assert drafts == [[6, 7, 8, 9, 10, 11], [8, 9, 10, 11, 12, 13]]
    first, second = model.calls[0]
    assert first.block_ids[:1] == (3,) and second.block_ids[:2] == (7, 8)
    scratch = first.block_ids[1:] + second.block_ids[2:]
    assert len(set(scratch)) == len(scratch) == 3 and set(scratch) <= {*range(100, 104)}


def test_who_does_not_draft_is_caught_up_with():
    model = Counter()
    proposer = ModelProposer(model, 3, source="mtp")
    sequence = decoding((1, 2, 3), [])._replace(block_ids=(5,))
    proposer.observe(step_of(sequence), NO_OUTPUT, [Verdict(KEY, (4,))])
    proposer.forget([KEY])
    assert drafted(proposer) == []
    assert [rows_of(call) for call in model.calls] == [[(0, [1, 2, 3], (5,))]]


def test_catching_up_at_once():
    model = Counter()
    proposer = ModelProposer(model, 3, source="mtp", catches_up_at_once=True)
    sequence = decoding((1, 2, 3), [])._replace(block_ids=(5,))
    proposer.observe(step_of(sequence), NO_OUTPUT, [Verdict(KEY, (4,))])
    assert [rows_of(call) for call in model.calls] == [[(0, [1, 2, 3], (5,))]]
    assert drafted(proposer, context([1, 2, 3, 4], blocks=(5,))) == [[5, 6, 7]]
    assert rows_of(model.calls[1]) == [(3, [4], (5, 103))]


def test_the_shadow_costs_no_pass():
    model = Counter()
    for proposer in (
        ModelProposer(model, 3, source="mtp"),
        NgramFirst(ModelProposer(model, 3, source="mtp"), NgramProposer(4, min_ngram_size=1)),
    ):
        drafted(proposer, context([1, 2, 3], blocks=()))
    assert model.calls == []


def test_drafts_end_where_the_positions_do():
    model = Counter(max_positions=6)
    proposer = ModelProposer(model, 5, source="mtp")
    assert drafted(proposer, context([1, 2, 3, 4, 5])) == [[6, 7]]
    assert drafted(proposer, context([1, 2, 3, 4, 5, 6, 7])) == []
    sequence = decoding((1, 2, 3, 4, 5, 6, 7), [])._replace(block_ids=(0, 1))
    proposer.observe(step_of(sequence), NO_OUTPUT, [Verdict(KEY, (4,))])
    model.calls.clear()
    assert drafted(proposer) == []
    assert rows_of(model.calls[0]) == [(0, [1, 2, 3, 4, 5, 6], (0, 1))]


@pytest.mark.parametrize(("max_draft", "expected"), [(9, [7, 8, 20, 21, 22, 6]), (3, [7, 8, 20])])
def test_matches_go_on_behind_the_model(max_draft, expected):
    model = Counter()
    proposer = WithNgram(
        ModelProposer(model, 2, source="mtp"), 6, max_ngram_size=3, min_ngram_size=2
    )
    (draft,) = proposer.propose([context([7, 8, 20, 21, 22, 6], max_draft=max_draft)])
    assert draft.tokens.tolist() == expected and draft.is_chain
    assert draft.sources == ("mtp",) * 2 + ("ngram",) * (len(expected) - 2)
    assert len(model.calls) == 2
    (draft,) = proposer.propose([context([1, 2, 3])])
    assert draft.tokens.tolist() == [4, 5] and draft.sources is None


def test_the_model_drafts_where_nothing_matches():
    model = Counter()
    proposer = NgramFirst(ModelProposer(model, 2, source="mtp"), NgramProposer(4, min_ngram_size=2))
    (draft,) = proposer.propose([context([1, 2, 3, 1, 2])])
    assert draft.source == "ngram" and draft.tokens.tolist()[:1] == [3]
    assert model.calls == []
    sequence = decoding((1, 2, 3, 1), [2])._replace(block_ids=(0, 1))
    proposer.observe(step_of(sequence), NO_OUTPUT, [Verdict(KEY, (9,))])
    (draft,) = proposer.propose([context([1, 2, 3, 1, 2, 9])])
    assert draft.source == "mtp" and draft.tokens.tolist() == [10, 11]
    assert rows_of(model.calls[0]) == [(4, [2, 9], (0, 1))]
