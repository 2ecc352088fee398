# SPDX-License-Identifier: Apache-2.0
"""How often a draft head's guesses are accepted on recorded greedy answers.

Walks through each answer as a server would: draft, keep what equals the target's token, go on
behind the token that the target adds. Owns no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import paddle
from numpy.typing import NDArray

from fdspec.training.batches import make_batch
from fdspec.training.head import MTPHead
from fdspec.training.recording import Recording
from fdspec.training.target import Target

_ROWS_AT_A_TIME = 512


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What came of the drafts.

    Attributes:
        drafted: drafts that had a token at each position and were right up to it.
        accepted: those that were right there, too.
        num_tokens: tokens of the answers but for the first of each.
        num_steps: steps of the target that wrote them.
    """

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    num_tokens: int
    num_steps: int

    @property
    def by_position(self) -> list[float]:
        """Share that is accepted at each position, given that the ones before were."""
        return [
            right / max(all_, 1) for right, all_ in zip(self.accepted, self.drafted, strict=True)
        ]

    @property
    def tokens_per_step(self) -> float:
        """Tokens that one step of the target gives."""
        return self.num_tokens / max(self.num_steps, 1)

    def plus(self, other: Acceptance) -> Acceptance:
        """Both together."""
        return Acceptance(
            tuple(a + b for a, b in zip(self.drafted, other.drafted, strict=True)),
            tuple(a + b for a, b in zip(self.accepted, other.accepted, strict=True)),
            self.num_tokens + other.num_tokens,
            self.num_steps + other.num_steps,
        )

    def __str__(self) -> str:
        shares = " / ".join(f"{share:.1%}" for share in self.by_position)
        return f"accepted {shares}, {self.tokens_per_step:.2f} tokens a step"


def evaluate(
    head: MTPHead, target: Target, recordings: Sequence[Recording], num_steps: int
) -> Acceptance:
    """Draft num_steps tokens a step over the whole vocabulary.

    Args:
        head: any.
        target: whose output matrix is shared.
        recordings: with greedy answers.
        num_steps: drafts a step.
    """
    total = Acceptance((0,) * num_steps, (0,) * num_steps, 0, 0)
    for recording in recordings:
        right = _right_guesses(head, target, recording, num_steps)
        total = total.plus(walk(right, recording.answer_start - 1))
    return total


def walk(right: NDArray[np.bool_], first: int) -> Acceptance:
    """What a server would accept of an answer.

    Args:
        right: [steps, rows], whether the draft of step j from row t is what the target says there;
            the drafts from row t are for tokens t + 2 and up.
        first: row from which the first draft is made.
    """
    num_steps, last = right.shape
    drafted, accepted = np.zeros(num_steps, np.int64), np.zeros(num_steps, np.int64)
    num_tokens = steps = 0
    row = first
    while row < last:
        # Nothing is known about what the target would say behind its last recorded token.
        room = min(num_steps, last - row)
        wrong = np.flatnonzero(~right[:room, row])
        kept = int(wrong[0]) if len(wrong) else room
        drafted[: min(kept + 1, room)] += 1
        accepted[:kept] += 1
        num_tokens += kept + 1
        steps += 1
        row += kept + 1
    return Acceptance(tuple(drafted.tolist()), tuple(accepted.tolist()), num_tokens, steps)


def _right_guesses(
    head: MTPHead, target: Target, recording: Recording, num_steps: int
) -> NDArray[np.bool_]:
    """[steps, rows]: whether the drafts from row t up to step j are what the target says there."""
    batch = make_batch([recording], num_steps)
    right = np.zeros(batch.weights.shape, np.bool_)
    with paddle.no_grad():
        # The product with the whole vocabulary is most of the work: for rows that matter only.
        rows = np.arange(recording.answer_start - 1, len(batch.rows.positions))
        for step, hidden in enumerate(head.forward(batch.rows, num_steps)):
            if not len(rows):
                break
            best = best_tokens(hidden[paddle.to_tensor(rows)], target)
            rows = rows[best == batch.candidates[step, rows, 0]]
            right[step, rows] = True
    return right


def best_tokens(hidden: paddle.Tensor, target: Target) -> NDArray[np.int64]:
    """Most likely tokens of rows [rows, hidden], by the shared output matrix."""
    output = paddle.Tensor(target.output, zero_copy=True)
    pieces = [
        paddle.matmul(hidden[start : start + _ROWS_AT_A_TIME], output, transpose_y=True)
        .argmax(axis=-1)
        .numpy()
        for start in range(0, hidden.shape[0], _ROWS_AT_A_TIME)
    ]
    return np.concatenate(pieces)
