# SPDX-License-Identifier: Apache-2.0
"""Random weights for a given architecture, to measure speed or test without a download.

Owns the distribution; reads no file. The weight loader uses it for `load_choices: dummy`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from fdspec.models.checkpoint.base import Tensor

# A prime number, so that no two rows of a matrix are alike.
_DRAWN = 2**18 - 5


class DummyCheckpoint:
    """Has every tensor that is asked for, the same on each run.

    Matrices are normal with variance 1 / inputs, so that activations keep their size; vectors
    named like norms are ones, other vectors (biases) are zeros.
    """

    def names(self) -> Sequence[str]:
        """None: nothing can be missing or superfluous."""
        return ()

    def file_of(self, name: str) -> str:
        """A word for errors."""
        return "dummy weights"

    def bits_per_weight(self, name: str) -> float:
        """They count as 16-bit floats."""
        return 16

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor's random values."""
        if len(shape) == 1:
            return np.full(shape, 1.0 if "norm" in name else 0.0, dtype=np.float32)
        generator = np.random.default_rng(zlib.crc32(name.encode()))
        size = shape[0] * shape[1]
        values = generator.standard_normal(min(size, _DRAWN), dtype=np.float32)
        # Large matrices repeat what was drawn: drawing all of a large model takes minutes.
        return np.resize(values / np.float32(shape[-1] ** 0.5), shape)
