# SPDX-License-Identifier: Apache-2.0
"""ExpertsConfig: the mixture of experts of a model, in one vocabulary. Never reads files."""

from __future__ import annotations

from dataclasses import dataclass

EXPERT_WIDTH_MULTIPLE = 16
MAX_EXPERTS = 512


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Which layers have experts, and how they choose them; see ops.route_experts.

    Attributes:
        layers: numbers of the layers with experts; the others have a plain MLP.
        num_experts: routed experts of a layer.
        num_chosen: of them, how many a token goes to.
        intermediate_size: width of one expert.
        num_shared: experts that every token goes through, held as one MLP of their joint width.
        has_bias: the router has a correction bias that steers the choice.
        normalize: the chosen experts' factors are divided by their sum.
        smallest_sum: or by this if the sum is below.
    """

    layers: tuple[int, ...]
    num_experts: int
    num_chosen: int
    intermediate_size: int
    num_shared: int = 0
    has_bias: bool = False
    normalize: bool = True
    smallest_sum: float = 0.0

    def complaint(self) -> str | None:
        """What is wrong with the numbers; None if nothing is."""
        for name in ("num_experts", "num_chosen", "intermediate_size"):
            if getattr(self, name) <= 0:
                return f"{name} of the experts must be positive, got {getattr(self, name)}"
        if self.num_experts > MAX_EXPERTS:
            return f"at most {MAX_EXPERTS} experts are supported, got {self.num_experts}"
        if self.num_chosen > self.num_experts:
            return f"{self.num_chosen} experts for a token, but a layer has {self.num_experts}"
        if self.intermediate_size % EXPERT_WIDTH_MULTIPLE:
            return (
                f"the width of an expert must be a multiple of {EXPERT_WIDTH_MULTIPLE}, got "
                f"{self.intermediate_size}"
            )
        return None
