# SPDX-License-Identifier: Apache-2.0
"""JoinedLinear: a projection of two vectors beside each other, as the sum of two projections."""

from __future__ import annotations

from typing import Any

from paddle import nn

from fdspec.layers.linear import Linear
from fdspec.ops import StepProgram, Value


class JoinedLinear(nn.Layer):
    """first(x[0]) + second(x[1]).

    Args:
        first, second: with the same number of outputs.
    """

    def __init__(self, first: Linear, second: Linear) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, x: tuple[Any, Any]) -> Any:
        """Two of [rows, in] float32 -> [rows, out] float32."""
        return self.second.forward(x[1], self.first.forward(x[0]))

    def lower(self, program: StepProgram, x: tuple[Value, Value]) -> Value:
        """Add this layer to a step program."""
        return self.second.lower(program, x[1], self.first.lower(program, x[0]))
