# SPDX-License-Identifier: Apache-2.0
"""Rotary frequencies of a model, with the ways to stretch them to longer contexts.

Owns the formulas; the tables are made by layers/rotary.py. Pure numpy in float64.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fdspec.models.config import ModelConfig, RopeScaling


def rope_frequencies(config: ModelConfig, max_model_len: int) -> tuple[NDArray[np.float64], float]:
    """Radians a position for each pair of dimensions, and the factor of cosines and sines.

    Args:
        config: the model.
        max_model_len: positions that may be used. Dynamic scaling takes it for the length of every
            sequence: with the length so far, keys in the cache would have other frequencies than
            the queries that read them, and tokens would depend on the chunks of a prompt.

    Returns:
        [head_dim / 2] float64, and the factor.

    """
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    frequencies = config.rope_theta**-exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies, 1.0
    if scaling.kind == "linear":
        return frequencies / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(frequencies, scaling), 1.0
    if scaling.kind == "yarn":
        return _yarn(frequencies, scaling, config), _yarn_attention_factor(scaling)
    return _dynamic(exponents, scaling, config, max_model_len), 1.0


def _dynamic(
    exponents: NDArray[np.float64], scaling: RopeScaling, config: ModelConfig, length: int
) -> NDArray[np.float64]:
    """NTK-aware: a larger base divides the slowest wave by the growth, and keeps the fastest."""
    growth = max(length / scaling.original_max_positions, 1.0)
    growth = scaling.factor * growth - (scaling.factor - 1)
    base = config.rope_theta * growth ** (config.head_dim / (config.head_dim - 2))
    frequencies: NDArray[np.float64] = base**-exponents
    return frequencies


def _llama3(frequencies: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """Long waves are divided by the factor, short ones kept, and a smooth band lies between."""
    rotations = scaling.original_max_positions * frequencies / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = np.clip((rotations - low) / (high - low), 0.0, 1.0)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def _yarn(
    frequencies: NDArray[np.float64], scaling: RopeScaling, config: ModelConfig
) -> NDArray[np.float64]:
    """Peng et al., https://arxiv.org/abs/2309.00071: a ramp over dimensions."""

    def dimension_of(rotations: float) -> float:
        length = scaling.original_max_positions / (rotations * 2 * math.pi)
        return config.head_dim * math.log(length) / (2 * math.log(config.rope_theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    # Equal ends would divide by zero; the ramp is then a step.
    width = max(high - low, 1e-3)
    stretched = np.clip((np.arange(len(frequencies)) - low) / width, 0.0, 1.0)
    return frequencies * (1 - stretched + stretched / scaling.factor)


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def grown(mscale: float) -> float:
        return 0.1 * mscale * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return grown(scaling.mscale) / grown(scaling.mscale_all_dim)
    return grown(1.0)
