# SPDX-License-Identifier: Apache-2.0
"""sample_rows: choose a token for each row of logits by the processor chain and keyed noise.

Also processed_probabilities, the law that the chain leaves. Called by the verifier; never changes
the logits and holds no random state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels
from fdspec.ops.row_params import GREEDY_TEMPERATURE, RowParams
from fdspec.utils.philox import gumbel_noise

BLOCK_TOKENS = 64
"""Neighbouring tokens whose largest logit sample_rows can be told."""


def num_token_blocks(vocab_size: int) -> int:
    """Blocks of a row of logits; the last one may be short."""
    return -(-vocab_size // BLOCK_TOKENS)


def sample_rows(logits: Array, params: RowParams, block_maxima: Array | None = None) -> Array:
    """Chooses the token of each row: argmax of processed score + Gumbel noise, ties to lower ids.

    The noise is a function of (seed, choice, position, token id), see `fdspec.utils.philox`; so
    the token depends on its row and parameters alone, and has the processed law over seeds.

    Args:
        logits: [rows, vocab] float32, raw; not changed.
        params: parameters of the same number of rows.
        block_maxima: [rows, num_token_blocks(vocab)] float32, the largest logit of each block, NaN
            as -inf; `StepProgram.run` gives them. They save time and change no token.

    Returns:
        [rows] int32.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit, or a parameter or a token id is out of range.
    """
    return kernels().sample_rows(logits, params, block_maxima)


def processed_probabilities(logits: Array, params: RowParams) -> Array:
    """Returns the law that each row's token is drawn from, after the whole processor chain.

    Args:
        logits: [rows, vocab] float32, raw; not changed.
        params: parameters of the same number of rows.

    Returns:
        [rows, vocab] float32; exactly 0 for every token that the chain removes, one 1 in greedy
        rows, sums to 1 up to rounding.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit, or a parameter or a token id is out of range.
    """
    return kernels().processed_probabilities(logits, params)


def reference_block_maxima(logits: Array) -> Array:
    """What block_maxima are, from their definition."""
    values = to_numpy(logits)
    values = np.where(np.isnan(values), -np.inf, values).astype(np.float32)
    blocks = range(0, values.shape[1], BLOCK_TOKENS)
    maxima = [values[:, first : first + BLOCK_TOKENS].max(axis=1) for first in blocks]
    return from_numpy(np.stack(maxima, axis=1), logits)


def reference_sample_rows(logits: Array, params: RowParams) -> Array:
    """sample_rows from its definition: the chain in float32, the noise in float64."""
    values = to_numpy(logits)
    chosen = np.zeros(len(values), np.int32)
    for index in range(len(values)):
        chosen[index] = np.argmax(reference_noisy_scores(values[index], params.row(index)))
    return from_numpy(chosen, logits)


def reference_processed_probabilities(logits: Array, params: RowParams) -> Array:
    """processed_probabilities from its definition, in float64 after the chain."""
    values = to_numpy(logits)
    law = np.zeros(values.shape, np.float32)
    for index in range(len(values)):
        row = params.row(index)
        scores = _reference_scores(values[index], row)
        kept = _reference_kept(scores, row)
        shifted = (
            scores[kept].astype(np.float64) - scores[kept[0]] if len(kept) > 1 else np.zeros(1)
        )
        law[index, kept] = np.exp(shifted) / np.exp(shifted).sum()
    return from_numpy(law, logits)


def reference_noisy_scores(logits: NDArray[np.float32], row: RowParams) -> NDArray[np.float64]:
    """[vocab] float64: what sample_rows takes the argmax of; -inf for tokens that are removed."""
    scores = _reference_scores(logits, row)
    kept = _reference_kept(scores, row)
    result = np.full(len(scores), -np.inf)
    # The kept token of a row without any possible token must still be the largest.
    result[kept] = np.maximum(scores[kept].astype(np.float64), -np.finfo(np.float64).max)
    if row.temperature[0] >= GREEDY_TEMPERATURE:
        seed, choice, position = (int(v[0]) for v in (row.seed, row.choice, row.position))
        result[kept] += gumbel_noise(kept, seed=seed, choice=choice, position=position)
    return result


def _reference_scores(logits: NDArray[np.float32], row: RowParams) -> NDArray[np.float32]:
    """[vocab] float32: logits after penalties, bias, mask and temperature."""
    scores = logits.copy()
    repetition, presence, frequency = (
        row.repetition_penalty[0],
        row.presence_penalty[0],
        row.frequency_penalty[0],
    )
    for token_id, count, in_prompt in zip(
        row.count_ids, row.output_counts, row.in_prompt, strict=True
    ):
        score = scores[token_id]
        if in_prompt or count > 0:
            score = score / repetition if score > 0 else score * repetition
        score = score - frequency * np.float32(count)
        scores[token_id] = score - presence if count > 0 else score
    for token_id, value in zip(row.bias_ids, row.bias_values, strict=True):
        scores[token_id] += value
    if row.mask is not None:
        allowed = np.unpackbits(row.mask[0].view(np.uint8), bitorder="little")[: len(scores)]
        scores[allowed == 0] = -np.inf
    scores[np.isnan(scores)] = -np.inf
    if row.temperature[0] >= GREEDY_TEMPERATURE:
        scores = scores / row.temperature[0]
    return np.minimum(scores, np.finfo(np.float32).max)


def _reference_kept(scores: NDArray[np.float32], row: RowParams) -> NDArray[np.int64]:
    """Ids that top_k, top_p and min_p keep, most likely first, ties by lower id; at least one."""
    order = np.lexsort((np.arange(len(scores)), -scores))
    if row.temperature[0] < GREEDY_TEMPERATURE or scores[order[0]] == -np.inf:
        return order[:1]
    order = order[scores[order] > -np.inf]
    if row.top_k[0] > 0:
        order = order[: row.top_k[0]]
    weights = np.exp(scores[order].astype(np.float64) - float(scores[order[0]]))
    if row.top_p[0] < 1:
        mass = np.cumsum(weights)
        length = 1 + int(np.searchsorted(mass, float(row.top_p[0]) * mass[-1]))
        order, weights = order[:length], weights[:length]
    return order[weights >= row.min_p[0]]
