# SPDX-License-Identifier: Apache-2.0
"""The loss of a draft head: cross-entropy with the target's own distribution.

Computed over a part of the vocabulary: frequent tokens and all candidates of the batch. Pure
functions; the trainer calls them.
"""

from __future__ import annotations

import numpy as np
import paddle
from numpy.typing import NDArray

from fdspec.training.batches import Batch
from fdspec.training.head import MTPHead
from fdspec.training.target import Target

_LATER_STEP = 0.8
"""Weight of each step against the one before: later drafts count only if earlier ones hold."""


def batch_loss(
    head: MTPHead, target: Target, batch: Batch, vocabulary: NDArray[np.int32]
) -> paddle.Tensor:
    """Mean loss of a batch, a scalar with gradients for the head's weights.

    Args:
        head: being trained.
        target: whose output matrix is shared.
        batch: rows, labels and weights.
        vocabulary: sorted ids that the head shall tell apart besides those in the batch.
    """
    ids = np.union1d(vocabulary, batch.candidates)
    output = paddle.to_tensor(target.output[ids])
    total = paddle.zeros([])
    weight_sum = 0.0
    outputs = head.forward(batch.rows, len(batch.weights))
    for step, hidden in enumerate(outputs):
        counted = np.flatnonzero(batch.weights[step])
        weights = batch.weights[step, counted] * _LATER_STEP**step
        losses = _cross_entropy(
            paddle.matmul(hidden[paddle.to_tensor(counted)], output, transpose_y=True),
            np.searchsorted(ids, batch.candidates[step, counted]),
            batch.probabilities[step, counted],
        )
        total = total + (losses * paddle.to_tensor(weights)).sum()
        weight_sum += float(weights.sum())
    return total / weight_sum


def _cross_entropy(
    logits: paddle.Tensor, columns: NDArray[np.int64], probabilities: NDArray[np.float32]
) -> paddle.Tensor:
    """[rows], of logits [rows, ids] with a distribution over some columns of each row."""
    # paddle.logsumexp and log_softmax are many times slower on CPUs.
    highest = logits.detach().max(axis=-1, keepdim=True)
    normalizer = paddle.log(paddle.exp(logits - highest).sum(axis=-1)) + highest.squeeze(-1)
    picked = paddle.take_along_axis(logits, paddle.to_tensor(columns), axis=1)
    return normalizer - (picked * paddle.to_tensor(probabilities)).sum(axis=-1)
