# SPDX-License-Identifier: Apache-2.0
"""append_paged_kv: write the keys and values of a step's rows into the paged KV cache.

Called by every attention layer before it attends. Changes the caches in place.
"""

from __future__ import annotations

import numpy as np

from fdspec.ops.arrays import Array, to_numpy
from fdspec.ops.dispatch import kernels
from fdspec.utils.bfloat16 import to_bfloat16
from fdspec.utils.int8_entries import to_int8_entries


def append_paged_kv(
    key: Array, value: Array, key_cache: Array, value_cache: Array, slots: Array
) -> None:
    """Writes each row's keys and values to its slot of the caches, in place.

    Args:
        key: [rows, kv_heads, head_dim] float32, after the rotary embedding.
        value: [rows, kv_heads, head_dim] float32.
        key_cache: [blocks, kv_heads, block_size, head_dim] float32, or bfloat16: then values are
            rounded to nearest, ties to even. Or [blocks, kv_heads, block_size, head_dim + 4] int8:
            codes of -127..127, and the bytes of the float32 that they are multiplied by, of each
            token and head (utils.int8_entries). An infinity or a NaN makes that scale NaN.
        value_cache: like key_cache.
        slots: [rows] int64, block * block_size + offset in the block; -1 leaves the row out.
            Two rows must not share a slot.

    Raises:
        TypeError: an argument is no array or has another dtype.
        ValueError: a shape does not fit, or a slot is outside the cache.
    """
    kernels().append_paged_kv(key, value, key_cache, value_cache, slots)


def reference_append_paged_kv(
    key: Array, value: Array, key_cache: Array, value_cache: Array, slots: Array
) -> None:
    """append_paged_kv from its definition."""
    block_size = key_cache.shape[2]
    for row, slot in enumerate(to_numpy(slots)):
        if slot < 0:
            continue
        block, offset = divmod(int(slot), block_size)
        for source, target in ((key, key_cache), (value, value_cache)):
            entry, cache = to_numpy(source)[row], to_numpy(target)
            cache[block, :, offset] = _STORED_FORMS.get(cache.dtype.name, np.asarray)(entry)


# By the dtype of the cache; bfloat16 is uint16 in numpy.
_STORED_FORMS = {"uint16": to_bfloat16, "int8": to_int8_entries}
