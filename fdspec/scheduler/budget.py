# SPDX-License-Identifier: Apache-2.0
"""Draft budget: which part of a proposer's draft may be verified, and fair shares of a step.

Pure functions for the batch scheduler. A proposer is not trusted: whatever it returns, what leaves
here is well-formed and safe to embed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fdspec.core import Draft

_INT32 = np.dtype(np.int32)


def usable_prefix(draft: Draft, max_tokens: int, vocab_size: int) -> Draft | None:
    """The longest prefix of a draft that can be computed. Does not modify.

    A prefix ends before the first token outside the vocabulary (no target token equals it, so
    neither it nor what follows can be accepted) and before the first parent that does not precede
    its child.

    Args:
        draft: anything a proposer returned.
        max_tokens: most rows that the sequence may use.
        vocab_size: ids 0 .. vocab_size - 1 exist.

    Returns:
        A valid draft of at least one token, or None.
    """
    tokens, parents = _as_list(draft.tokens), _as_list(draft.parents)
    length = 0
    for token, parent in zip(tokens[: max(max_tokens, 0)], parents, strict=False):
        if not (0 <= token < vocab_size and -1 <= parent < length):
            break
        length += 1
    if length == 0:
        return None
    is_whole = length == len(tokens) == len(parents)
    if is_whole and draft.tokens.dtype == draft.parents.dtype == _INT32:
        return draft
    sources = None
    if draft.sources is not None and len(draft.sources) >= length:
        sources = tuple(draft.sources[:length])
    return Draft(
        draft.sequence_id,
        np.array(tokens[:length], np.int32),
        np.array(parents[:length], np.int32),
        draft.source,
        sources,
        max(draft.num_probes - (len(tokens) - length), 0),
    )


def fair_shares(wants: Sequence[int], budget: int, first: int = 0) -> list[int]:
    """Max-min fair division: nobody gets more than wanted, the least served gets the most possible.

    Args:
        wants: how much each one asks for.
        budget: what there is in total.
        first: index of the one that is served first with what does not divide evenly; callers
            rotate it, so that over time nobody comes last.

    Returns:
        What each one gets; the sum is min(sum(wants), budget).
    """
    if sum(wants) <= budget:
        return list(wants)
    shares = [0] * len(wants)
    left = max(budget, 0)
    rotated = [(first + offset) % len(wants) for offset in range(len(wants))]
    open_ones = [index for index in rotated if wants[index] > 0]
    while left > 0:
        level = max(left // len(open_ones), 1)
        for index in open_ones[:left]:
            grant = min(level, wants[index] - shares[index])
            shares[index] += grant
            left -= grant
        open_ones = [index for index in open_ones if shares[index] < wants[index]]
    return shares


def _as_list(values: Sequence[int] | np.ndarray) -> list[int]:
    if isinstance(values, np.ndarray) and values.dtype == _INT32 and values.ndim == 1:
        ids: list[int] = values.tolist()
        return ids
    flat = np.asarray(values).ravel()
    return flat.tolist() if np.issubdtype(flat.dtype, np.integer) else []
