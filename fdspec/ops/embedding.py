# SPDX-License-Identifier: Apache-2.0
"""Rows of a packed matrix by index: the embedding, which may share its weight with the head."""

from __future__ import annotations

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels
from fdspec.ops.quantize_weight import dequantize_weight
from fdspec.ops.weights import PackedWeight


def embedding(token_ids: Array, weight: PackedWeight) -> Array:
    """Returns the rows of a matrix that belong to token ids, dequantised.

    Args:
        token_ids: [rows] int32, each in 0 .. vocab - 1.
        weight: [vocab, dim] in any format; vocab is its out_features, dim its in_features.

    Returns:
        [rows, dim] float32, of the kind of `token_ids`.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit, or an id is outside the vocabulary.
    """
    return kernels().embedding(token_ids, weight.data, weight.layout)


def reference_embedding(token_ids: Array, weight: PackedWeight) -> Array:
    """Embedding from its definition: rows of the dequantised matrix."""
    return from_numpy(to_numpy(dequantize_weight(weight))[to_numpy(token_ids)], token_ids)
