# SPDX-License-Identifier: Apache-2.0
"""RMSNorm over the last dimension. Owns its weight."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import nn

from fdspec.layers.buffers import as_tensor
from fdspec.ops import StepProgram, Value, rms_norm


class RMSNorm(nn.Layer):
    """x / sqrt(mean(x^2) + epsilon) * weight.

    Args:
        weight: [dim] float32.
        epsilon: added to the mean square.
    """

    def __init__(self, weight: NDArray[np.float32], epsilon: float) -> None:
        super().__init__()
        self.register_buffer("weight", as_tensor(weight))
        self._weight = weight
        self._epsilon = epsilon

    def forward(self, x: Any) -> Any:
        """[rows, dim] float32 -> the same."""
        return rms_norm(x, self._weight, self._epsilon)

    def lower(self, program: StepProgram, x: Value) -> Value:
        """Add this layer to a step program."""
        return program.rms_norm(x, self._weight, self._epsilon)

    @property
    def parameters_of_rows(self) -> tuple[NDArray[np.float32], float]:
        """Weight [dim] float32 and epsilon, for layers that apply the norm themselves."""
        return self._weight, self._epsilon
