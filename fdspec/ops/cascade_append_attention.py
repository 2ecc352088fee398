# SPDX-License-Identifier: Apache-2.0
"""cascade_append_attention: attention of a step's rows over the paged KV cache and each other.

Prefill chunks, decode rows and chains or trees of draft rows go together in one call. Called by
every attention layer after `append_paged_kv`; reads the caches, never writes them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdspec.ops.arrays import Array, from_numpy, to_numpy
from fdspec.ops.dispatch import kernels
from fdspec.utils.bfloat16 import from_bfloat16, to_bfloat16
from fdspec.utils.int8_entries import codes_and_scales

_PART_KEYS = 64
_LOG2_E = np.float32(1.44269504)


def cascade_append_attention(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    block_table: Array,
    row_splits: Array,
    context_lens: Array,
    parents: Array,
    scale: float,
) -> Array:
    """Returns softmax(scale * q . k) . v of each row over the tokens that it sees.

    Row i of a sequence (counted from 0 in this step) has its key and value in the sequence's slot
    context + i already. It sees the context, and of the step's rows its ancestors and itself.
    Rows of a prompt or a chain of drafts have parents -1, 0, 1, ...; in a tree, siblings do not
    see each other. Query head h reads key head h // (heads / kv_heads).

    A row's bits depend on its query and on the keys and values that it sees, in their order: not
    on other rows, on how a prompt is cut into steps, on block_size or threads; and a row of a tree
    has the bits that plain decoding of its path gives.

    With bfloat16 caches the scaled query is rounded to bfloat16, and the weight of a key is cut to
    bfloat16 after it has been scaled such that the largest of its part of 64 keys is 1; products
    and sums are float32. Weights are divided by the sum of the cut weights. With int8 caches
    queries are rounded likewise, a score is the product with the key's codes times the key's scale,
    and what multiplies a value's codes is the weight times the value's scale, rounded to bfloat16;
    weights are divided by their sum as it is. With float32 caches everything is float32.

    Args:
        query: [rows, heads, head_dim] float32, after the rotary embedding.
        key_cache: [blocks, kv_heads, block_size, head_dim] float32 or bfloat16, or
            [blocks, kv_heads, block_size, head_dim + 4] int8 as append_paged_kv writes it; heads
            must be a multiple of kv_heads and head_dim of 8.
        value_cache: like key_cache.
        block_table: [sequences, max_blocks] int32; slot s of a sequence is in its block
            s // block_size. Entries beyond the sequence's rows are not read.
        row_splits: [sequences + 1] int32; sequence s owns rows row_splits[s]..row_splits[s + 1].
        context_lens: [sequences] int32, tokens of the sequence in the cache before this step.
        parents: [rows] int32, row (inside the sequence) of the token before it; -1 is the last
            token of the context. A parent comes before its children.
        scale: factor of the scores, usually head_dim ** -0.5.

    Returns:
        [rows, heads * head_dim] float32.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit, or splits, parents or blocks are not as described.
    """
    return kernels().cascade_append_attention(
        query, key_cache, value_cache, block_table, row_splits, context_lens, parents, scale
    )


def reference_cascade_append_attention(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    block_table: Array,
    row_splits: Array,
    context_lens: Array,
    parents: Array,
    scale: float,
) -> Array:
    """cascade_append_attention from its definition, in float64 but for the stated roundings."""
    rows, heads, head_dim = query.shape
    kv_heads, block_size = key_cache.shape[1:3]
    caches = (to_numpy(key_cache), to_numpy(value_cache))
    # Such that the weight of a score is 2 ** score.
    queries = to_numpy(query) * (np.float32(scale) * _LOG2_E)
    if caches[0].dtype != np.float32:
        queries = from_bfloat16(to_bfloat16(queries))
    splits = to_numpy(row_splits)
    output = np.zeros((rows, heads, head_dim))
    for sequence, context in enumerate(to_numpy(context_lens)):
        first = int(splits[sequence])
        for row in range(first, int(splits[sequence + 1])):
            slots = visible_slots(int(context), to_numpy(parents)[first:], row - first)
            blocks = to_numpy(block_table)[sequence, slots // block_size]
            for head in range(heads):
                kv_head = head // (heads // kv_heads)
                keys, values = (cache[blocks, kv_head, slots % block_size] for cache in caches)
                output[row, head] = _attend(queries[row, head].astype(np.float64), keys, values)
    return from_numpy(output.reshape(rows, heads * head_dim).astype(np.float32), query)


def visible_slots(context: int, parents: NDArray[np.int32], row: int) -> NDArray[np.int64]:
    """Returns the slots of the tokens that a row sees, in order of position; its own is the last.

    Args:
        context: tokens of the sequence before this step; they are in slots 0 .. context - 1.
        parents: [rows] parents of the sequence's rows; row i is in slot context + i.
        row: index inside the sequence.

    Returns:
        [context + depth + 1] int64, slots counted along the sequence's block table.
    """
    path = []
    while row >= 0:
        path.append(context + row)
        row = int(parents[row])
    return np.array([*range(context), *reversed(path)], dtype=np.int64)


class _State(NamedTuple):
    """Attention over some keys: largest score, sum of the weights, weighted sum of the values."""

    largest: float
    total: float
    output: NDArray[np.float64]


def _attend(
    query: NDArray[np.float64], keys: NDArray[Any], values: NDArray[Any]
) -> NDArray[np.float64]:
    """[head_dim]: one query over entries of a cache, in order of position."""
    parts = [
        _attend_part(query, keys[first : first + _PART_KEYS], values[first : first + _PART_KEYS])
        for first in range(0, len(keys), _PART_KEYS)
    ]
    largest = max(part.largest for part in parts)
    shares = [np.exp2(part.largest - largest) for part in parts]
    total = sum(share * part.total for share, part in zip(shares, parts, strict=True))
    output = sum(share * part.output for share, part in zip(shares, parts, strict=True))
    return np.asarray(output / total)


def _attend_part(query: NDArray[np.float64], keys: NDArray[Any], values: NDArray[Any]) -> _State:
    if keys.dtype == np.int8:
        codes, scales = codes_and_scales(keys)
        scores = (codes @ query) * scales
        codes, scales = codes_and_scales(values)
        weights = np.exp2(scores - scores.max()).astype(np.float32)
        factors = from_bfloat16(to_bfloat16(weights * scales))
        return _State(scores.max(), weights.sum(dtype=np.float64), factors.astype(float) @ codes)
    if keys.dtype == np.uint16:
        scores = from_bfloat16(keys).astype(np.float64) @ query
        bits = np.exp2(scores - scores.max()).astype(np.float32).view(np.uint32)
        weights = (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
        return _State(scores.max(), weights.sum(), weights @ from_bfloat16(values))
    scores = keys.astype(np.float64) @ query
    weights = np.exp2(scores - scores.max())
    return _State(scores.max(), weights.sum(), weights @ values)
