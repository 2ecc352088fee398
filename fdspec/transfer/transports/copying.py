# SPDX-License-Identifier: Apache-2.0
"""Copies of blocks between arrays, in as few and as long pieces as the block ids allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def runs(first: Sequence[int], second: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Stretches in which both sequences count upwards: (start in first, start in second, length).

    Args:
        first: block ids.
        second: as many block ids.
    """
    start = 0
    for index in range(1, len(first) + 1):
        if (
            index == len(first)
            or first[index] != first[index - 1] + 1
            or second[index] != second[index - 1] + 1
        ):
            yield first[start], second[start], index - start
            start = index


def copy_runs(
    source: NDArray[np.uint8],
    destination: NDArray[np.uint8],
    stretches: Sequence[tuple[int, int, int]],
) -> None:
    """Copy blocks of one plane.

    Args:
        source: [blocks, block bytes].
        destination: [other blocks, block bytes]; written.
        stretches: as `runs` of the source's and the destination's block ids gives them.
    """
    for first, second, length in stretches:
        destination[second : second + length] = source[first : first + length]
