# SPDX-License-Identifier: Apache-2.0
"""StepProgram: a model's whole forward pass as one call.

Owns nothing but the order of the layers; weights, tables and caches belong to the model and its
runner, and are kept alive. Layers add themselves with `lower`; the single ops are its reference,
whose bits it has.
"""

from __future__ import annotations

from typing import Any, NewType

from fdspec.ops.arrays import Array
from fdspec.ops.dispatch import kernels
from fdspec.ops.weights import PackedWeight

# What a layer of a program computes: rows of floats.
Value = NewType("Value", int)


class StepProgram:
    """A program under construction, then in use.

    Each method adds a layer and returns its result. A step of any number of rows runs in one
    parallel region without Python: with few rows threads share the columns of each product, with
    many each takes tiles of rows through all layers up to the next attention.

    All methods raise ValueError for a value or shape that does not fit and TypeError for an
    argument of another kind; the message begins with the argument's name.
    """

    def __init__(self) -> None:
        self._program: Any = kernels().StepProgram()

    def embedding(self, weight: PackedWeight) -> Value:
        """Rows `token_ids` of a [vocab, dim] matrix."""
        return Value(self._program.embedding(weight.data, weight.layout))

    def hidden(self, width: int) -> Value:
        """Rows that come with the step: `hidden` of `run`, [rows, width]; once in a program."""
        return Value(self._program.hidden(width))

    def tap(self, x: Value, cache: Array) -> None:
        """Keep rows in a cache, as bfloat16, for whoever reads it after the step.

        Args:
            x: [rows, width].
            cache: [blocks, 1, block_size, width] bfloat16 as uint16; written at the rows' slots.
        """
        self._program.tap(x, cache)

    def set_first_slot(self, first_slot: int) -> None:
        """Let the keys of every sequence begin in this slot of its blocks instead of slot 0.

        `context_lens` then count the keys in the cache, which end in slot first_slot +
        context_lens - 1.
        """
        self._program.set_first_slot(first_slot)

    def rms_norm(self, x: Value, weight: Array, epsilon: float) -> Value:
        """As ops.rms_norm; computed by each linear layer, or experts, that take it.

        Args:
            x: [rows, dim].
            weight: [dim] float32.
            epsilon: added to the mean square.
        """
        return Value(self._program.rms_norm(x, weight, epsilon))

    def swiglu(self, x: Value) -> Value:
        """As ops.swiglu of [rows, 2 * dim]; computed by the linear layer that takes it."""
        return Value(self._program.swiglu(x))

    def linear(
        self,
        x: Value,
        weight: PackedWeight,
        *,
        bias: Array | None = None,
        residual: Value | None = None,
    ) -> Value:
        """As ops.weight_only_linear.

        Args:
            x: [rows, in].
            weight: [out, in] in any format.
            bias: [out] float32, or None.
            residual: [rows, out], added last, or None.
        """
        is_float = weight.format.float_activations
        return Value(self._program.linear(x, weight.data, weight.layout, is_float, bias, residual))

    def attention(
        self,
        qkv: Value,
        key_cache: Array,
        value_cache: Array,
        *,
        cos: Array,
        sin: Array,
        num_heads: int,
        scale: float,
        query_norm: tuple[Array, float] | None = None,
        key_norm: tuple[Array, float] | None = None,
    ) -> Value:
        """Norm of each head, rotation, append to the cache and attention.

        Args:
            qkv: [rows, (num_heads + 2 * kv_heads) * head_dim]: queries, keys, values.
            key_cache: [blocks, kv_heads, block_size, head_dim] float32, or bfloat16 as uint16, or
                [blocks, kv_heads, block_size, head_dim + 4] int8 (ops.append_paged_kv); all
                attentions of a program have caches of one kind.
            value_cache: like key_cache.
            cos: [positions, head_dim / 2] float32 of ops.rope.
            sin: like cos.
            num_heads: query heads; a multiple of kv_heads.
            scale: factor of the scores.
            query_norm: weight [head_dim] float32 and epsilon of a norm over each head, or None.
            key_norm: like query_norm.

        Returns:
            [rows, num_heads * head_dim].
        """
        return Value(
            self._program.attention(
                qkv, key_cache, value_cache, cos, sin, num_heads, scale, query_norm, key_norm
            )
        )

    def experts(
        self,
        x: Value,
        logits: Value,
        gate_up: PackedWeight,
        down: PackedWeight,
        *,
        bias: Array | None,
        num_chosen: int,
        normalize: bool,
        smallest_sum: float,
        residual: Value | None = None,
    ) -> Value:
        """As ops.route_experts and ops.expert_mlp after it.

        Args:
            x: [rows, hidden]; may be the result of rms_norm.
            logits: [rows, num_experts], the router's.
            gate_up: [num_experts * 2 * ffn, hidden].
            down: [num_experts * hidden, ffn].
            bias: [num_experts] float32, or None.
            num_chosen: experts of a row.
            normalize: divide the factors of a row by their sum.
            smallest_sum: or by this if the sum is below.
            residual: [rows, hidden], which the experts' results are added to, or None.
        """
        weights = [
            part
            for weight in (gate_up, down)
            for part in (weight.data, weight.layout, weight.format.float_activations)
        ]
        routing = (bias, num_chosen, normalize, smallest_sum)
        return Value(self._program.experts(x, logits, *weights, *routing, residual))

    def select(self, x: Value) -> Value:
        """The rows `selected_rows`; layers after it compute those alone."""
        return Value(self._program.select(x))

    def finish(self) -> None:
        """End the program, whose last layer is linear over selected rows."""
        self._program.finish()

    def run(
        self,
        token_ids: Array,
        positions: Array,
        *,
        slots: Array,
        block_table: Array,
        row_splits: Array,
        context_lens: Array,
        parents: Array,
        selected_rows: Array,
        out: Array,
        block_maxima: Array | None = None,
        hidden: Array | None = None,
        hidden_out: Array | None = None,
    ) -> None:
        """Compute a step; one at a time.

        Args:
            token_ids: [rows] int32, inside the vocabulary.
            positions: [rows] int32, inside the tables of the rotation.
            slots: [rows] int64, where keys and values go: block * block_size + offset.
            block_table: [sequences, max blocks] int32.
            row_splits: [sequences + 1] int32.
            context_lens: [sequences] int32.
            parents: [rows] int32; these four as in ops.cascade_append_attention.
            selected_rows: [selected] int64, rows whose results are wanted.
            out: [selected, width of the last layer] float32; written. Or [selected] int32, for the
                column of the largest value of each row only, as sampling at temperature 0 chooses
                it: the values themselves then never leave the processor's cache.
            block_maxima: [selected, num_token_blocks(width)] float32, the largest value of each 64
                neighbours in `out`, for ops.sample_rows; written. None: not wanted.
            hidden: [rows, width] float32 for a program that has `hidden` values, else None.
            hidden_out: [selected, width of select's value] float32, the selected rows themselves;
                written. None: not wanted.
        """
        self._program.run(
            token_ids,
            positions,
            slots,
            block_table,
            row_splits,
            context_lens,
            parents,
            selected_rows,
            out,
            block_maxima,
            hidden,
            hidden_out,
        )

    @property
    def num_layers_appended(self) -> int:
        """Attentions of the running step whose keys and values are all in the cache.

        Other threads may read it while `run` is at work.
        """
        return int(self._program.num_layers_appended)
