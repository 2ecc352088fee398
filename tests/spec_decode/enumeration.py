# SPDX-License-Identifier: Apache-2.0
"""Every branch of a random algorithm with its probability: a random generator made symbolic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")
Law = NDArray[np.floating]


class ScriptedOracle:
    """Answers by a script; beyond its end takes the first possible branch and notes the others."""

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.alternatives: list[list[int]] = []
        self.probability = 1.0
        self._taken: list[int] = []

    def choose(self, weights: Law) -> int:
        """An index, each with its weight as probability."""
        possible = [int(index) for index in np.flatnonzero(weights)]
        if len(self._taken) < len(self.script):
            index = self.script[len(self._taken)]
        else:
            index = possible[0]
            self.alternatives += [[*self._taken, other] for other in possible[1:]]
        self._taken.append(index)
        self.probability *= float(weights[index])
        return index

    def accepts(self, depth: int, token: int, target: float, draft: float) -> bool:
        """Branch on min(1, target / draft), the chance that the rule accepts."""
        chance = min(1.0, target / draft) if draft > 0 else 0.0
        return self.choose(np.array([1.0 - chance, chance])) == 1

    def draw(self, depth: int, law: Law) -> int:
        """Branch on every token of the law."""
        return self.choose(law)


def branches(run: Callable[[ScriptedOracle], Result]) -> Iterator[tuple[float, Result]]:
    """Run an algorithm once for each way its random decisions can go.

    Args:
        run: takes its decisions from the oracle and from nothing else.

    Yields:
        (probability of the branch, what `run` returned).
    """
    pending: list[list[int]] = [[]]
    while pending:
        oracle = ScriptedOracle(pending.pop())
        result = run(oracle)
        pending += oracle.alternatives
        yield oracle.probability, result
