# SPDX-License-Identifier: Apache-2.0
"""Rotary settings of a deployment in the place of the checkpoint's. Pure; called by loading.py."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fdspec.config import RopeScalingConfig
from fdspec.models.config import ModelConfig, RopeScaling


@dataclass(frozen=True, slots=True)
class RopeOverride:
    """What a deployment changes.

    Attributes:
        theta: base of the frequencies; None keeps the checkpoint's.
        scaling: how they are stretched; without a type the checkpoint's way is kept.
    """

    theta: float | None = None
    scaling: RopeScalingConfig = RopeScalingConfig()

    @property
    def changes_something(self) -> bool:
        """False if the checkpoint's settings stay as they are."""
        return self.theta is not None or self.scaling.type is not None

    def apply(self, config: ModelConfig) -> ModelConfig:
        """The model with these settings. Does not modify."""
        if self.theta is not None:
            config = replace(config, rope_theta=self.theta)
        if self.scaling.type is None:
            return config
        scaling = self._scaling(config)
        if scaling is None:
            return replace(config, rope_scaling=None)
        stretched = int(scaling.original_max_positions * scaling.factor)
        longest = max(stretched, config.max_position_embeddings)
        is_stated = scaling.kind == "llama3"
        return replace(
            config,
            rope_scaling=scaling,
            max_position_embeddings=longest if is_stated else config.max_position_embeddings,
        )

    def _scaling(self, config: ModelConfig) -> RopeScaling | None:
        own = self.scaling
        if own.type is None or own.type == "default":
            return None
        assert own.factor is not None
        original = own.original_max_position_embeddings
        if original is None:
            known = config.rope_scaling
            original = (
                config.max_position_embeddings if known is None else known.original_max_positions
            )
        return RopeScaling(
            kind=own.type,
            factor=own.factor,
            original_max_positions=original,
            low_frequency_factor=own.low_freq_factor,
            high_frequency_factor=own.high_freq_factor,
            beta_fast=own.beta_fast,
            beta_slow=own.beta_slow,
            attention_factor=own.attention_factor,
            mscale=own.mscale,
            mscale_all_dim=own.mscale_all_dim,
            truncate=own.truncate,
        )
