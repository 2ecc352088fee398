# SPDX-License-Identifier: Apache-2.0
"""StepTime: how long a step will take, learnt from the steps that were taken.

A value for whoever plans; it reads no clock itself. Its answers decide how much of a prompt goes
into a step, never which tokens come out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdspec.core import StepPlan

MEMORY = 0.95
"""What a step's weight is multiplied by at each later step of its kind: about 20 steps count."""

_UNITS = np.array([10.0, 10.0, 1e5])
"""Loads of these sizes take some milliseconds each: the fit is of numbers around 1."""

# Per unit: 10 ms a step, 10 ms for 10 rows, 1 ms for 100,000 reads; any measured step outweighs it.
_GUESS = np.array([10.0, 10.0, 1.0])
_GUESS_WEIGHT = 1e-4 * np.eye(3)


class StepLoad(NamedTuple):
    """What a step has to do.

    Attributes:
        num_rows: prompt, decode and draft rows.
        num_reads: sum over the rows of the cached tokens that they attend to.
    """

    num_rows: int
    num_reads: int

    @classmethod
    def of(cls, plan: StepPlan) -> StepLoad:
        """The load of a plan."""
        return cls(plan.num_rows, sum(reads(s.start, s.num_rows) for s in plan.sequences))


def reads(start: int, num_rows: int) -> int:
    """Cached tokens that rows at positions start, start + 1, ... attend to in all."""
    return num_rows * start + num_rows * (num_rows + 1) // 2


class StepTime:
    """milliseconds = fixed + a * rows + b * reads, by least squares of relative errors.

    Steps with and without prompt rows are remembered apart, so that a long time of decoding does
    not make prompts forgotten; within each kind, old steps count less and less. Until there are
    steps, a slow machine is assumed.
    """

    def __init__(self) -> None:
        # Normal equations by kind: sums of x x' and of x, with x = load / milliseconds.
        self._products = np.zeros((2, 3, 3))
        self._sums = np.zeros((2, 3))
        self._costs: NDArray[np.float64] | None = None

    def learn(self, load: StepLoad, step_ms: float, *, has_prompt: bool) -> None:
        """Take a measured step.

        Args:
            load: what the step did.
            step_ms: how long it took.
            has_prompt: whether rows of prompts were among its rows.
        """
        x = _features(load) / max(step_ms, 1e-3)
        kind = int(has_prompt)
        self._products[kind] = MEMORY * self._products[kind] + np.outer(x, x)
        self._sums[kind] = MEMORY * self._sums[kind] + x
        self._costs = None

    def predict_ms(self, load: StepLoad) -> float:
        """How long a step of this load will take. Does not modify what is known."""
        return float(_features(load) @ self._fitted())

    def rows_within(self, left_ms: float, start: int, limit: int) -> int:
        """Most rows of a prompt that take no more than left_ms beside what a step does already.

        Args:
            left_ms: what the step's other rows leave.
            start: tokens of the prompt that are cached.
            limit: most rows that are wanted.
        """
        _, row_ms, read_ms = self._fitted() / _UNITS
        # n rows read n * start + n * n / 2 tokens: the positive root of the quadratic.
        linear_ms = row_ms + read_ms * start
        if left_ms <= 0:
            return 0
        root = np.sqrt(linear_ms * linear_ms + 2 * read_ms * left_ms)
        # In this form nothing is divided by a read_ms of 0.
        count = 2 * left_ms / (linear_ms + root) if linear_ms + root > 0 else limit
        return int(min(count, limit))

    def _fitted(self) -> NDArray[np.float64]:
        """Milliseconds for each unit of load; none is negative."""
        if self._costs is None:
            costs = np.linalg.solve(
                self._products.sum(axis=0) + _GUESS_WEIGHT,
                self._sums.sum(axis=0) + _GUESS_WEIGHT @ _GUESS,
            )
            self._costs = np.maximum(costs, 0.0)
        return self._costs


def _features(load: StepLoad) -> NDArray[np.float64]:
    features: NDArray[np.float64] = np.array([10.0, load.num_rows, load.num_reads]) / _UNITS
    return features
