# SPDX-License-Identifier: Apache-2.0
"""row_logprobs: log-probabilities of chosen tokens and of the most likely ones, from raw logits.

Called by the verifier for rows whose logprobs are requested. Pure.
"""

from __future__ import annotations

import numpy as np

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels


def row_logprobs(
    logits: Array, token_ids: Array, num_top: int
) -> tuple[Array, Array, Array, Array]:
    """Log-softmax of each row at one token and at the most likely ones.

    Args:
        logits: [rows, vocab] float32; NaN counts as -inf. If all are -inf, all tokens are equally
            likely.
        token_ids: [rows] int32, the token to look up in each row.
        num_top: how many of the most likely tokens to list, 0 .. vocab.

    Returns:
        logprob: [rows] float32, natural logarithm, of token_ids.
        rank: [rows] int32, place of token_ids in the order; 1 is the most likely token.
        top_ids: [rows, num_top] int32, most likely first, ties by lower id.
        top_logprobs: [rows, num_top] float32.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit, or a token is outside the vocabulary.
    """
    return kernels().row_logprobs(logits, token_ids, num_top)


def reference_row_logprobs(
    logits: Array, token_ids: Array, num_top: int
) -> tuple[Array, Array, Array, Array]:
    """row_logprobs from its definition, in float64."""
    values = np.where(np.isnan(to_numpy(logits)), -np.inf, to_numpy(logits)).astype(np.float64)
    values = np.minimum(values, float(np.finfo(np.float32).max))
    rows, vocab = values.shape
    logprob, rank = np.zeros(rows, np.float32), np.zeros(rows, np.int32)
    top_ids = np.zeros((rows, num_top), np.int32)
    top_logprobs = np.zeros((rows, num_top), np.float32)
    for row, token_id in enumerate(to_numpy(token_ids)):
        largest = values[row].max()
        shifted = values[row] - largest if largest > -np.inf else np.zeros(vocab)
        logprobs = shifted - np.log(np.exp(shifted).sum())
        order = np.lexsort((np.arange(vocab), -values[row]))
        logprob[row] = logprobs[token_id]
        rank[row] = 1 + int(np.flatnonzero(order == token_id)[0])
        top_ids[row] = order[:num_top]
        top_logprobs[row] = logprobs[order[:num_top]]
    return (
        from_numpy(logprob, logits),
        from_numpy(rank, logits),
        from_numpy(top_ids, logits),
        from_numpy(top_logprobs, logits),
    )
