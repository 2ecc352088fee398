# SPDX-License-Identifier: Apache-2.0
"""Every format of packed weights, and matrices of them for the tests of ops that use weights."""

from __future__ import annotations

import numpy as np

from fdspec import ops
from fdspec.ops import PackedWeight, WeightFormat

FLOAT_FORMATS = ("none", "bfloat16")
INTEGER_FORMATS = (
    *("wint8", "wint8_g32", "wint8_g64", "wint8_g128"),
    *("wint4_channel", "wint4_g32", "wint4_g64", "wint4_g128"),
    *("wint4_channel_min", "wint4_g32_min", "wint4_g64_min", "wint4_g128_min"),
)
FORMATS = (*FLOAT_FORMATS, *INTEGER_FORMATS, *(f"{name}_a16" for name in INTEGER_FORMATS))

# [in, out]: less than a block, no multiple of it, a short last group of 64 and 128, no full panel.
SIZES = ((1, 1), (16, 5), (48, 16), (100, 40), (160, 33))


def matrix(out_features: int, in_features: int, seed: int = 0) -> np.ndarray:
    """[out, in] float32 with a few large values, as weights have them."""
    generator = np.random.default_rng(seed + 7 * out_features + in_features)
    values = generator.normal(0, 0.05, (out_features, in_features))
    return (values * np.exp(generator.normal(0, 0.5, values.shape))).astype(np.float32)


def packed(name: str, out_features: int, in_features: int, seed: int = 0) -> PackedWeight:
    """A random matrix in the format of that name."""
    values = matrix(out_features, in_features, seed)
    return ops.quantize_weight(values, WeightFormat.parse(name))
