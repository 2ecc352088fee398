# SPDX-License-Identifier: Apache-2.0
"""SwiGLU feed-forward block: down(silu(gate(x)) * up(x)). Owns its two projections."""

from __future__ import annotations

from typing import Any

from paddle import nn

from fdspec.layers.linear import Linear
from fdspec.ops import StepProgram, Value, swiglu


class SwiGLU(nn.Layer):
    """The block with gate and up as one product.

    Args:
        gate_up: hidden -> gate, then up.
        down: intermediate -> hidden.
    """

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.down = down
        self._steps = (gate_up.forward, down.forward)

    def forward(self, x: Any, residual: Any) -> Any:
        """[rows, hidden] float32 -> block's result + residual, the same shape."""
        gate_up, down = self._steps
        return down(swiglu(gate_up(x)), residual)

    def lower(self, program: StepProgram, x: Value, residual: Value) -> Value:
        """Add this layer to a step program."""
        return self.down.lower(program, program.swiglu(self.gate_up.lower(program, x)), residual)
