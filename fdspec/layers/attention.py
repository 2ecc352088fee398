# SPDX-License-Identifier: Apache-2.0
"""Grouped-query attention over the paged KV cache.

Owns its projections; the cache and the step's metadata are arguments. Never decides which rows
see which: AttentionMetadata does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import nn

from fdspec.layers.buffers import split_columns
from fdspec.layers.joined_linear import JoinedLinear
from fdspec.layers.linear import Linear
from fdspec.layers.norm import RMSNorm
from fdspec.layers.rotary import Rotary
from fdspec.ops import StepProgram, Value, append_paged_kv, cascade_append_attention


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """Where the rows of a step belong; the same for all layers.

    Attributes:
        slots: [rows] int64, block * block_size + offset of each row's key and value.
        block_table: [sequences, max blocks] int32.
        row_splits: [sequences + 1] int32; sequence i owns rows row_splits[i]..row_splits[i + 1].
        context_lens: [sequences] int32, tokens in the cache before this step.
        parents: [rows] int32, row inside the sequence before this one; -1 is the last cached token.
    """

    slots: NDArray[np.int64]
    block_table: NDArray[np.int32]
    row_splits: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    parents: NDArray[np.int32]


class Attention(nn.Layer):
    """Projections, optional norm of each head, rotation, cache, attention, output projection.

    Args:
        qkv: hidden -> query, key, value beside each other; a joined one takes two inputs as x.
        output: heads * head_dim -> hidden.
        rotary: shared by all layers.
        num_heads, num_kv_heads, head_dim: shape of the heads.
        query_norm, key_norm: over each head before the rotation, or None.
    """

    def __init__(
        self,
        qkv: Linear | JoinedLinear,
        output: Linear,
        rotary: Rotary,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        query_norm: RMSNorm | None = None,
        key_norm: RMSNorm | None = None,
    ) -> None:
        super().__init__()
        self.qkv = qkv
        self.output = output
        self.rotary = rotary
        self.query_norm = query_norm
        self.key_norm = key_norm
        self._shape = (num_heads, num_kv_heads, head_dim)
        self._sizes = (num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim)
        self._scale = head_dim**-0.5
        self._steps = (qkv.forward, rotary.forward, output.forward)
        norms = (query_norm, key_norm)
        self._norms = [norm.forward for norm in norms if norm is not None]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Query heads, key heads, and elements of a head."""
        return self._shape

    def forward(
        self,
        x: Any,
        residual: Any,
        positions: Any,
        metadata: AttentionMetadata,
        cache: Sequence[Any],
    ) -> Any:
        """Attend, and add the residual.

        Args:
            x: [rows, hidden] float32, normalised.
            residual: [rows, hidden] float32.
            positions: [rows] int32.
            metadata: of the step.
            cache: keys and values of this layer as ops.append_paged_kv takes them; this step's
                rows are written into them.

        Returns:
            [rows, hidden] float32.
        """
        project, rotate, output = self._steps
        heads, kv_heads, head_dim = self._shape
        rows = x.shape[0]
        query, key, value = split_columns(project(x), self._sizes)
        if self._norms:
            norm_query, norm_key = self._norms
            query = norm_query(query.reshape((rows * heads, head_dim)))
            key = norm_key(key.reshape((rows * kv_heads, head_dim)))
        query, key = rotate(
            query.reshape((rows, heads, head_dim)),
            key.reshape((rows, kv_heads, head_dim)),
            positions,
        )
        key_cache, value_cache = cache
        value = value.reshape((rows, kv_heads, head_dim))
        append_paged_kv(key, value, key_cache, value_cache, metadata.slots)
        attended = cascade_append_attention(
            query,
            key_cache,
            value_cache,
            metadata.block_table,
            metadata.row_splits,
            metadata.context_lens,
            metadata.parents,
            self._scale,
        )
        return output(attended, residual)

    def lower(self, program: StepProgram, x: Any, residual: Value, cache: Sequence[Any]) -> Value:
        """Add this layer to a step program, with the cache that it will read and write."""
        cos, sin = self.rotary.tables
        query_norm, key_norm = self.query_norm, self.key_norm
        attended = program.attention(
            self.qkv.lower(program, x),
            *cache,
            cos=cos,
            sin=sin,
            num_heads=self._shape[0],
            scale=self._scale,
            query_norm=None if query_norm is None else query_norm.parameters_of_rows,
            key_norm=None if key_norm is None else key_norm.parameters_of_rows,
        )
        return self.output.lower(program, attended, residual)
