# SPDX-License-Identifier: Apache-2.0
"""Batches: recordings to the rows and labels of a training step, in an order that a seed decides.

Owns which tokens count and how much. The trainer asks for batch after batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdspec.training.head import Rows
from fdspec.training.recording import Recording
from fdspec.utils.bfloat16 import from_bfloat16

_TURN_WEIGHT = 0.3
_REPEATED_WEIGHT = 0.5
_REPEATED_TOKENS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one step learns from.

    Attributes:
        rows: inputs of the head.
        candidates: [steps, rows, candidates] int32, the target's most likely tokens after the
            token that each row and step reads.
        probabilities: [steps, rows, candidates] float32, of these; each row sums to 1.
        weights: [steps, rows] float32, how much each row counts; 0 where there is no label.
    """

    rows: Rows
    candidates: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    weights: NDArray[np.float32]


def batch_order(
    recordings: Sequence[Recording], *, tokens_per_batch: int, seed: int, first: int = 0
) -> Iterator[list[int]]:
    """Endless batches as indexes of recordings, each at least tokens_per_batch long.

    Every pass goes over all recordings in a new order; batches may reach from one to the next.

    Args:
        recordings: at least one.
        tokens_per_batch: least tokens of a batch.
        seed: of the orders.
        first: number of batches to leave out.
    """
    lengths = [len(recording.tokens) for recording in recordings]
    number, batch, size = 0, [], 0
    for index in _passes(len(recordings), seed):
        batch.append(index)
        size += lengths[index]
        if size >= tokens_per_batch:
            if number >= first:
                yield batch
            number, batch, size = number + 1, [], 0


def _passes(count: int, seed: int) -> Iterator[int]:
    number = 0
    while True:
        yield from np.random.default_rng([seed, number]).permutation(count).tolist()
        number += 1


def make_batch(recordings: Sequence[Recording], num_steps: int) -> Batch:
    """The batch of some recordings, for a head that drafts num_steps tokens.

    Row t reads the hidden state of token t and, in step j, token t + 1 + j; its label is what the
    target says after that token.
    """
    lengths = [len(recording.tokens) - 1 for recording in recordings]
    parts = [_columns(recording, num_steps) for recording in recordings]
    tokens, candidates, logprobs, weights = (
        np.concatenate([part[index] for part in parts], axis=1) for index in range(4)
    )
    probabilities = np.exp(logprobs, dtype=np.float32)
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    rows = Rows(
        from_bfloat16(np.concatenate([r.hidden[:-1] for r in recordings])),
        tokens,
        np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        tuple(np.cumsum([0, *lengths]).tolist()),
    )
    return Batch(rows, candidates, probabilities, weights)


def _columns(recording: Recording, num_steps: int) -> tuple[NDArray[np.generic], ...]:
    """Tokens, candidates, logprobs and weights of one conversation, [steps, rows, ...] each."""
    last = len(recording.tokens) - 1
    read = np.arange(1, last + 1) + np.arange(num_steps)[:, None]
    inside = np.minimum(read, last)
    weights = np.where(read <= last, label_weights(recording)[inside], np.float32(0))
    return (
        recording.tokens[inside],
        recording.candidates[inside],
        recording.logprobs[inside],
        weights,
    )


def label_weights(recording: Recording) -> NDArray[np.float32]:
    """How much the target's prediction after each token counts, [tokens] float32.

    Predictions inside the answer count 1, those inside the turn that the model wrote less, those
    inside what was given nothing. What goes on copying the conversation counts half: it teaches
    the same again and again, and other proposers find it without a model.
    """
    tokens = recording.tokens.tolist()
    weights = np.zeros(len(tokens), np.float32)
    weights[recording.turn_start : recording.answer_start] = _TURN_WEIGHT
    weights[recording.answer_start - 1 :] = 1.0
    seen: set[tuple[int, ...]] = set()
    for end in range(_REPEATED_TOKENS, len(tokens)):
        piece = tuple(tokens[end - _REPEATED_TOKENS : end])
        # Says something about the token at `end`, which is predicted after the one before.
        if piece in seen and end > recording.answer_start:
            weights[end - 1] *= _REPEATED_WEIGHT
        seen.add(piece)
    return weights


def frequent_tokens(recordings: Sequence[Recording], count: int) -> NDArray[np.int32]:
    """The `count` tokens that are most often most likely in answers, sorted by id.

    Fewer if fewer occur. Ties go to the lower id.
    """
    best = [recording.candidates[recording.answer_start - 1 :, 0] for recording in recordings]
    ids, counts = np.unique(np.concatenate(best), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:count]
    return np.sort(ids[order]).astype(np.int32)
