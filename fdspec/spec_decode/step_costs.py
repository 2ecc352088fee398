# SPDX-License-Identifier: Apache-2.0
"""StepCosts: what more rows add to the time of a decode step on this machine, with this model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

_LEAST, _MOST = 0.01, 0.95


class StepCosts(NamedTuple):
    """A step of B sequences with D draft rows in all takes

        T(B, D) = T(1, 0) * (1 + sequence * (B - 1) + row * D).

    Attributes:
        sequence: what one more sequence costs, as a share of a step with one sequence alone.
        row: what one more draft row costs, as such a share.
        draft: what one more pass of the drafting model costs, as such a share; it grows with B as
            the step does. 0 if drafts are looked up.
    """

    sequence: float
    row: float
    draft: float = 0.0

    def row_price(self, num_sequences: int) -> float:
        """What a draft row costs, in tokens that plain decoding would yield in its time.

        Args:
            num_sequences: B, that decode.
        """
        count = max(num_sequences, 1)
        return self.row * count / (1.0 + self.sequence * (count - 1))

    @classmethod
    def fitted(cls, times: Mapping[tuple[int, int], float]) -> StepCosts:
        """The costs that explain measured times best: least squares of relative errors.

        Args:
            times: of steps, in any unit, by (B, D / B): sequences, and draft rows of each. Must
                have (1, 0), a step with more sequences, and one with drafts.
        """
        base = times[1, 0]
        shapes = [shape for shape in times if shape != (1, 0)]
        relative = np.array([times[shape] / base for shape in shapes])
        counts = np.array([(b - 1, b * d) for b, d in shapes], dtype=np.float64)
        # Dividing by the time itself weighs long and short steps alike.
        costs, *_ = np.linalg.lstsq(
            counts / relative[:, None], (relative - 1.0) / relative, rcond=None
        )
        sequence, row = np.clip(costs, _LEAST, _MOST).tolist()
        return cls(sequence, row)


TYPICAL_COSTS = StepCosts(sequence=0.17, row=0.12)
"""Of a 135M model with 4-bit weights on two AVX-512 cores, for when nothing can be measured."""
