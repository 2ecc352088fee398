# SPDX-License-Identifier: Apache-2.0
"""How a head is trained: everything that decides the result besides the data. Plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass

_WARM_UP_STEPS = 20
_DECAY_SHARE = 0.5
_LAST_RATE = 0.02


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Fixed before the first step.

    Attributes:
        num_model_steps: drafts that the head learns to make one after the other.
        learning_rate: highest.
        weight_decay: of matrices, times the learning rate.
        tokens_per_batch: least tokens of a step.
        loss_vocab_size: frequent tokens over which the loss is computed, besides a batch's own.
        unrolled_share: part of the training time in which drafts follow one another.
        seed: of the order of the data and the start.
    """

    num_model_steps: int = 3
    learning_rate: float = 3e-3
    weight_decay: float = 0.02
    tokens_per_batch: int = 900
    loss_vocab_size: int = 4096
    unrolled_share: float = 0.35
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How long to train.

    Attributes:
        single_steps: steps that teach the first draft only, which come first.
        unrolled_steps: steps that teach all drafts.
    """

    single_steps: int
    unrolled_steps: int

    @property
    def num_steps(self) -> int:
        """All steps."""
        return self.single_steps + self.unrolled_steps

    def learning_rate(self, step: int, highest: float) -> float:
        """Rises at first, stays, and falls from the middle to the end."""
        decay_steps = max(1, int(self.num_steps * _DECAY_SHARE))
        left = (self.num_steps - step) / decay_steps
        warm = (step + 1) / _WARM_UP_STEPS
        return highest * min(1.0, warm, _LAST_RATE + (1 - _LAST_RATE) * left)


def plan_for_time(
    seconds: float, single_s: float, unrolled_s: float, unrolled_share: float
) -> TrainingPlan:
    """A plan that takes about some time.

    Args:
        seconds: to spend.
        single_s, unrolled_s: measured time of a step of each kind.
        unrolled_share: part of the time for unrolled steps.
    """
    return TrainingPlan(
        max(1, math.floor(seconds * (1 - unrolled_share) / single_s)),
        max(1, math.floor(seconds * unrolled_share / unrolled_s)),
    )


def plan_for_steps(num_steps: int, unrolled_share: float) -> TrainingPlan:
    """A plan of a given length, for which an unrolled step is taken to be 2.5 times as long."""
    unrolled = round(num_steps * unrolled_share / (unrolled_share + 2.5 * (1 - unrolled_share)))
    return TrainingPlan(num_steps - unrolled, unrolled)
