# SPDX-License-Identifier: Apache-2.0
"""compact_kv: move the cached keys and values of accepted tree rows to their positions' slots.

Called by the model runner's commit, once for each layer. Changes the caches in place.
"""

from __future__ import annotations

from fdspec.ops.arrays import Array, to_numpy
from fdspec.ops.dispatch import kernels


def compact_kv(
    key_cache: Array, value_cache: Array, source_slots: Array, destination_slots: Array
) -> None:
    """Copies cache entries to other slots, one after another, in place.

    The accepted rows of a tree, in path order, never move to a later position than their own; so
    a copy never overwrites an entry that a later one reads.

    Args:
        key_cache: [blocks, kv_heads, block_size, head_dim] float32 or bfloat16, of one layer, or
            [blocks, kv_heads, block_size, head_dim + 4] int8: scales move with their codes.
        value_cache: like key_cache.
        source_slots: [n] int64, block * block_size + offset in the block.
        destination_slots: [n] int64, where each entry goes; it may be its own slot.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit, or a slot is outside the cache.
    """
    kernels().compact_kv(key_cache, value_cache, source_slots, destination_slots)


def reference_compact_kv(
    key_cache: Array, value_cache: Array, source_slots: Array, destination_slots: Array
) -> None:
    """compact_kv from its definition."""
    block_size = key_cache.shape[2]
    pairs = zip(to_numpy(source_slots), to_numpy(destination_slots), strict=True)
    for source, destination in pairs:
        from_block, from_offset = divmod(int(source), block_size)
        to_block, to_offset = divmod(int(destination), block_size)
        for cache in (to_numpy(key_cache), to_numpy(value_cache)):
            cache[to_block, :, to_offset] = cache[from_block, :, from_offset]
