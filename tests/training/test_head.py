# SPDX-License-Identifier: Apache-2.0
"""The head computes what is written above it, its gradient is right, and so is its loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import paddle
import pytest

from fdspec.training.batches import frequent_tokens, label_weights, make_batch
from fdspec.training.head import MTPHead, Rows
from fdspec.training.loss import batch_loss


@pytest.fixture(scope="module")
def head(target):
    return MTPHead(target, seed=0)


def with_draft(rows, first, row, hidden, tokens):
    """The rows of a conversation up to one, and then a row as another step makes it."""
    return Rows(
        np.concatenate([rows.hidden[first : row + 1], hidden[None]]),
        np.array([[*rows.tokens[0, first : row + 1], tokens]], np.int32),
        np.arange(row - first + 2, dtype=np.int32),
        (0, row - first + 2),
    )


def test_later_steps_read_the_output_of_the_step_before(head, recordings):
    rows = make_batch(recordings[:2], 2).rows
    first, second = (output.numpy() for output in head.forward(rows, 2))
    start = rows.splits[1]
    for row in (start, start + 9, rows.splits[2] - 3):
        chain = with_draft(rows, start, row, first[row], rows.tokens[1, row])
        expected = head.forward(chain, 1)[0].numpy()[-1]
        np.testing.assert_allclose(second[row], expected, rtol=1e-4, atol=1e-4)


def test_conversations_do_not_see_each_other(head, recordings):
    together = head.forward(make_batch(recordings[:2], 1).rows, 1)[0].numpy()
    alone = head.forward(make_batch(recordings[1:2], 1).rows, 1)[0].numpy()
    np.testing.assert_allclose(together[-len(alone) :], alone, rtol=1e-4, atol=1e-4)


def test_no_row_sees_what_comes_later(head, recordings):
    rows = make_batch(recordings[:1], 1).rows
    before = head.forward(rows, 1)[0].numpy()
    hidden = rows.hidden.copy()
    hidden[20:] += 1
    after = head.forward(replace(rows, hidden=hidden), 1)[0].numpy()
    np.testing.assert_array_equal(before[:20], after[:20])
    assert (before[20:] != after[20:]).any(axis=1).all()


def test_the_gradient_is_the_slope_of_the_loss(target, recordings):
    head = MTPHead(target, seed=1)
    batch = make_batch(recordings[:1], 3)
    vocabulary = frequent_tokens(recordings, 64)
    batch_loss(head, target, batch, vocabulary).backward()
    generator = np.random.default_rng(0)
    for name, weight in head.weights().items():
        direction = generator.standard_normal(weight.shape).astype(np.float32)
        direction *= 1e-2 / np.linalg.norm(direction)
        slope = float((weight.grad.numpy() * direction).sum())
        values = weight.numpy()
        losses = []
        for sign in (1, -1):
            weight.set_value(values + sign * direction)
            with paddle.no_grad():
                losses.append(float(batch_loss(head, target, batch, vocabulary)))
        weight.set_value(values)
        assert (losses[0] - losses[1]) / 2 == pytest.approx(slope, rel=0.05, abs=2e-5), name


def test_the_loss_is_a_cross_entropy_over_the_vocabulary(head, target, recordings):
    batch = make_batch(recordings[:1], 1)
    whole = np.arange(target.config.vocab_size, dtype=np.int32)
    loss = float(batch_loss(head, target, batch, whole))
    logits = head.forward(batch.rows, 1)[0].numpy().astype(np.float64) @ target.output.T
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    picked = np.take_along_axis(logprobs, batch.candidates[0].astype(np.int64), axis=1)
    losses = -(picked * batch.probabilities[0]).sum(axis=1)
    assert loss == pytest.approx(np.average(losses, weights=batch.weights[0]), rel=1e-4)


def test_labels_are_what_the_target_says_behind_the_token_read(recordings):
    recording = recordings[0]
    batch = make_batch([recording], 2)
    last = len(recording.tokens) - 1
    assert batch.rows.hidden.shape[0] == last
    np.testing.assert_array_equal(batch.rows.tokens[0], recording.tokens[1:])
    np.testing.assert_array_equal(batch.candidates[1, : last - 1], recording.candidates[2:])
    np.testing.assert_array_equal(batch.weights[0], label_weights(recording)[1:])
    assert batch.weights[1, -1] == 0
    assert (batch.weights[0, : recording.turn_start - 1] == 0).all()


def test_copies_count_less(recordings):
    tokens = np.array([*range(20), *range(30, 50), *range(30, 50)], np.int32)
    weights = label_weights(replace(recordings[0], tokens=tokens, turn_start=10, answer_start=15))
    assert (weights[14:45] == 1).all()
    assert (weights[45:59] == 0.5).all()
    assert weights[12] == pytest.approx(0.3)
