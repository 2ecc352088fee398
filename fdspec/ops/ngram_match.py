# SPDX-License-Identifier: Apache-2.0
"""ngram_match: draft tokens copied from what followed the same n-gram earlier in the sequence.

Called by the n-gram proposer. Keeps no state: a draft is a function of the sequence's tokens.
"""

from __future__ import annotations

import numpy as np

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels


def ngram_match(
    tokens: Array, splits: Array, max_draft: Array, *, max_ngram: int, min_ngram: int
) -> tuple[Array, Array]:
    """Drafts for each sequence what followed its latest n-gram earlier, in prompt or output.

    The longest n-gram that occurred before wins, from max_ngram down to min_ngram tokens. Of
    several occurrences the most recent one with max_draft tokens after it is taken; if none has so
    many, the one with most. A continuation that reaches the end of the sequence goes on with
    itself ("ha ha" drafts "ha ha ha ..."), so a draft has max_draft tokens or, without a match,
    none. One pass over the tokens: linear in their number.

    Args:
        tokens: [total] int32, prompt and output of all sequences, one after another.
        splits: [sequences + 1] int64; sequence s owns tokens[splits[s]:splits[s + 1]].
        max_draft: [sequences] int32, length of each draft; 0 or less drafts nothing.
        max_ngram: longest n-gram that is looked up.
        min_ngram: shortest one, at least 1.

    Returns:
        Draft tokens [total drafted] int32 of all sequences, and their splits [sequences + 1] int64.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit, or splits or n-gram sizes are out of order.
    """
    return kernels().ngram_match(tokens, splits, max_draft, max_ngram, min_ngram)


def reference_ngram_match(
    tokens: Array, splits: Array, max_draft: Array, *, max_ngram: int, min_ngram: int
) -> tuple[Array, Array]:
    """ngram_match from its definition."""
    bounds = to_numpy(splits).tolist()
    drafts: list[int] = []
    draft_splits = [0]
    for index, limit in enumerate(to_numpy(max_draft).tolist()):
        sequence = to_numpy(tokens)[bounds[index] : bounds[index + 1]].tolist()
        drafts += _reference_draft(sequence, limit, max_ngram, min_ngram)
        draft_splits.append(len(drafts))
    return (
        from_numpy(np.array(drafts, np.int32), tokens),
        from_numpy(np.array(draft_splits, np.int64), tokens),
    )


def _reference_draft(sequence: list[int], limit: int, max_ngram: int, min_ngram: int) -> list[int]:
    length = len(sequence)
    for size in range(min(max_ngram, length), min_ngram - 1, -1):
        pattern = sequence[length - size :]
        ends = [end for end in range(size, length) if sequence[end - size : end] == pattern]
        if limit > 0 and ends:
            roomy = [end for end in ends if length - end >= limit]
            end = max(roomy) if roomy else min(ends)
            return [sequence[end + i % (length - end)] for i in range(limit)]
    return []
