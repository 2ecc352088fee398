# SPDX-License-Identifier: Apache-2.0
"""Verify strategies: which draft tokens are accepted, and which token of the target's own follows.

Each strategy turns logits and row parameters into one Choice for each sequence; stopping, logprobs
and accept policies are not its business. Called by the verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdspec.core import SequencePlan
from fdspec.ops import RowParams, processed_probabilities, sample_rows, verify_tree
from fdspec.spec_decode.acceptance import KeyedOracle, walk
from fdspec.spec_decode.draft_tree import deepest_path

MAX_TOPP_CANDIDATES = 5
"""`topp` accepts a draft token only if it is among so many most likely tokens of its row."""


class Choice(NamedTuple):
    """What verification lets through for one sequence, before the stop walk.

    Attributes:
        accepted: indices into the draft, in path order.
        next_token: the recovered or bonus token.
    """

    accepted: list[int]
    next_token: int


Match = Callable[[NDArray[np.int32], Sequence[SequencePlan]], list[Choice]]
"""(the target's own tokens [rows], sequences that own 1 + num_draft_rows each)."""

Strategy = Callable[[NDArray[np.float32], RowParams, Sequence[SequencePlan]], list[Choice]]
"""(logits [rows, vocab], parameters of the rows, sequences as above)."""


def match_targets(targets: NDArray[np.int32], sequences: Sequence[SequencePlan]) -> list[Choice]:
    """Accept drafts that equal the target's own tokens: the output never depends on the draft."""
    drafts = [sequence.draft for sequence in sequences if sequence.draft is not None]
    if not drafts:
        return [Choice([], token) for token in targets.tolist()]
    num_drafted = [0 if s.draft is None else len(s.draft.tokens) for s in sequences]
    result = verify_tree(
        np.concatenate([draft.tokens for draft in drafts]),
        np.concatenate([draft.parents for draft in drafts]),
        targets,
        np.array([0, *accumulate(num_drafted)]),
    )
    accepted, splits = result.accepted.tolist(), result.splits.tolist()
    return [
        Choice(accepted[start:end], token)
        for start, end, token in zip(
            splits[:-1], splits[1:], result.next_tokens.tolist(), strict=True
        )
    ]


def rejection(
    logits: NDArray[np.float32], params: RowParams, sequences: Sequence[SequencePlan]
) -> list[Choice]:
    """Accept a draft token with its probability, else sample the rest: keeps the distribution."""
    targets = sample_rows(logits, params).tolist()
    laws = _laws_of_drafting(logits, params, sequences)
    choices, row = [], 0
    for sequence in sequences:
        draft = sequence.draft
        if draft is None:
            choices.append(Choice([], targets[row]))
        else:
            seed, choice = sequence.params.seed, sequence.sequence_id[1]
            assert seed is not None
            oracle = KeyedOracle(seed, choice, sequence.num_output)
            end = row + 1 + len(draft)
            tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
            choices.append(
                Choice(*walk(laws[row:end], tokens, parents, oracle, own=targets[row:end]))
            )
        row += 1 + sequence.num_draft_rows
    return choices


def topp(
    logits: NDArray[np.float32], params: RowParams, sequences: Sequence[SequencePlan]
) -> list[Choice]:
    """Accept any draft token that the row's sampling parameters leave possible. Lossy."""
    targets = sample_rows(logits, params).tolist()
    laws = _laws_of_drafting(logits, params, sequences)
    choices, row = [], 0
    for sequence in sequences:
        accepted: list[int] = []
        current = -1
        if sequence.draft is not None:
            pairs = zip(
                sequence.draft.tokens.tolist(), sequence.draft.parents.tolist(), strict=True
            )
            for index, (token, parent) in enumerate(pairs):
                if parent == current and _is_candidate(laws[row + 1 + current], token):
                    accepted.append(index)
                    current = index
        choices.append(Choice(accepted, targets[row + 1 + current]))
        row += 1 + sequence.num_draft_rows
    return choices


def accept_all(targets: NDArray[np.int32], sequences: Sequence[SequencePlan]) -> list[Choice]:
    """Accept the longest path of every draft, right or wrong. For debugging: changes the output."""
    tokens: list[int] = targets.tolist()
    choices, row = [], 0
    for sequence in sequences:
        path: list[int] = []
        if sequence.draft is not None:
            path = deepest_path(sequence.draft.parents.tolist())
        choices.append(Choice(path, tokens[row + 1 + path[-1] if path else row]))
        row += 1 + sequence.num_draft_rows
    return choices


def reject_all(targets: NDArray[np.int32], sequences: Sequence[SequencePlan]) -> list[Choice]:
    """Accept no draft token, not even a right one. For debugging: plain decoding at full cost."""
    tokens: list[int] = targets.tolist()
    first_rows = np.cumsum([0, *(1 + sequence.num_draft_rows for sequence in sequences)])[:-1]
    return [Choice([], tokens[row]) for row in first_rows.tolist()]


# Strategies that need more than the target's own tokens. `target_match` is match_targets, and so is
# `greedy`, for which the verifier gives every row temperature 0.
STRATEGIES: dict[str, Strategy] = {"rejection": rejection, "topp": topp}

ACCEPT_POLICIES: dict[str, Match] = {
    "normal": match_targets,
    "accept_all": accept_all,
    "reject_all": reject_all,
}


def _laws_of_drafting(
    logits: NDArray[np.float32], params: RowParams, sequences: Sequence[SequencePlan]
) -> NDArray[np.float32]:
    """Laws of all rows; nothing is computed in a step without drafts."""
    if any(sequence.draft is not None for sequence in sequences):
        laws: NDArray[np.float32] = processed_probabilities(logits, params)
        return laws
    return logits[:0]


def _is_candidate(law: NDArray[np.float32], token: int) -> bool:
    if not 0 <= token < len(law) or law[token] <= 0.0:
        return False
    num_likelier = int(
        np.count_nonzero(law > law[token]) + np.count_nonzero(law[:token] == law[token])
    )
    return num_likelier < MAX_TOPP_CANDIDATES
