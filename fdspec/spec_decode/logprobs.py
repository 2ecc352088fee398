# SPDX-License-Identifier: Apache-2.0
"""Logprobs of tokens from the raw logits of the rows that produced them. Called by the verifier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.core import TokenLogprob
from fdspec.ops import row_logprobs


def token_logprobs(
    logits: NDArray[np.float32], token_ids: Sequence[int] | NDArray[np.int32], num_top: int
) -> tuple[TokenLogprob, ...]:
    """Logprob, rank and most likely tokens for each row.

    Args:
        logits: [rows, vocab] float32, raw.
        token_ids: [rows] token that each row chose or that follows it.
        num_top: most likely tokens to list.
    """
    ids = np.asarray(token_ids, dtype=np.int32)
    columns = row_logprobs(logits, ids, min(num_top, logits.shape[1]))
    return tuple(
        TokenLogprob(token, logprob, rank, tuple(zip(top_ids, top_logprobs, strict=True)))
        for token, logprob, rank, top_ids, top_logprobs in zip(
            ids.tolist(), *(column.tolist() for column in columns), strict=True
        )
    )
