# SPDX-License-Identifier: Apache-2.0
"""Embedding: rows of a packed matrix. It may be the output projection's weight too (tied)."""

from __future__ import annotations

from typing import Any

from paddle import nn

from fdspec.layers.buffers import as_tensor
from fdspec.ops import PackedWeight, StepProgram, Value, embedding


class Embedding(nn.Layer):
    """Token ids to vectors.

    Args:
        weight: [vocab, dim], packed in any format.
    """

    def __init__(self, weight: PackedWeight) -> None:
        super().__init__()
        self.register_buffer("weight", as_tensor(weight.data))
        self._packed = weight

    @property
    def packed_weight(self) -> PackedWeight:
        """The weight with its format."""
        return self._packed

    def forward(self, token_ids: Any) -> Any:
        """[rows] int32, each in 0 .. vocab - 1 -> [rows, dim] float32."""
        return embedding(token_ids, self._packed)

    def lower(self, program: StepProgram) -> Value:
        """Add this layer to a step program."""
        return program.embedding(self._packed)
