# SPDX-License-Identifier: Apache-2.0
"""Mixture-of-experts feed-forward block: a router, routed experts, and experts that are shared.

Owns the router and the experts; which rows meet in an expert changes no bit of any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import nn

from fdspec.layers.buffers import as_tensor
from fdspec.layers.linear import Linear
from fdspec.layers.mlp import SwiGLU
from fdspec.ops import PackedWeight, StepProgram, Value, expert_mlp, route_experts


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """How rows choose experts; see ops.route_experts.

    Attributes:
        bias: [num_experts] float32, or None.
        num_chosen: experts of a row.
        normalize: factors of a row are divided by their sum.
        smallest_sum: or by this if the sum is below.
    """

    bias: NDArray[np.float32] | None
    num_chosen: int
    normalize: bool
    smallest_sum: float = 0.0


class MixtureOfExperts(nn.Layer):
    """residual + shared experts + sum of the chosen experts, each with its factor.

    Args:
        router: hidden -> a logit for each expert, in float32.
        routing: how logits become choices.
        gate_up: [num_experts * 2 * ffn, hidden], see ops.expert_mlp.
        down: [num_experts * hidden, ffn].
        shared: experts that every row goes through, as one block; or None.
    """

    def __init__(
        self,
        router: Linear,
        routing: Routing,
        gate_up: PackedWeight,
        down: PackedWeight,
        shared: SwiGLU | None,
    ) -> None:
        super().__init__()
        self.router = router
        self.shared = shared
        self.register_buffer("gate_up", as_tensor(gate_up.data))
        self.register_buffer("down", as_tensor(down.data))
        bias = routing.bias
        self.register_buffer("routing_bias", None if bias is None else as_tensor(bias))
        self._routing = routing
        self._experts = (gate_up, down)
        self._steps = (router.forward, None if shared is None else shared.forward)

    @property
    def packed_experts(self) -> tuple[PackedWeight, PackedWeight]:
        """Gate and up of all experts, and down, with their formats."""
        return self._experts

    def forward(self, x: Any, residual: Any) -> Any:
        """[rows, hidden] float32 -> block's result + residual, the same shape."""
        route, shared = self._steps
        routing = self._routing
        experts, factors = route_experts(
            route(x),
            routing.bias,
            routing.num_chosen,
            normalize=routing.normalize,
            smallest_sum=routing.smallest_sum,
        )
        if shared is not None:
            residual = shared(x, residual)
        return expert_mlp(x, experts, factors, *self._experts, residual=residual)

    def lower(self, program: StepProgram, x: Value, residual: Value) -> Value:
        """Add this layer to a step program."""
        routing = self._routing
        logits = self.router.lower(program, x)
        if self.shared is not None:
            residual = self.shared.lower(program, x, residual)
        return program.experts(
            x,
            logits,
            *self._experts,
            bias=routing.bias,
            num_chosen=routing.num_chosen,
            normalize=routing.normalize,
            smallest_sum=routing.smallest_sum,
            residual=residual,
        )
