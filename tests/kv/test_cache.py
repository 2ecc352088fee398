# SPDX-License-Identifier: Apache-2.0
"""The KV arena: shapes, sizes, and that another mapping of it sees the same bytes."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from fdspec.core.errors import ConfigError
from fdspec.kv.cache import KVCache, KVCacheLayout


@pytest.mark.parametrize(
    ("dtype", "numpy_dtype", "entry_size"),
    [("bfloat16", "u2", 8), ("float32", "f4", 8), ("int8", "i1", 12)],
)
def test_views_cover_the_arena_without_overlap(dtype, numpy_dtype, entry_size):
    layout = KVCacheLayout(num_layers=3, num_kv_heads=2, head_dim=8, block_size=4, dtype=dtype)
    cache = KVCache(layout, num_blocks=5)
    assert layout.block_bytes == 3 * 2 * 2 * 4 * entry_size * np.dtype(numpy_dtype).itemsize
    views = [array for layer in cache.layers for array in layer]
    for value, array in enumerate(views, start=1):
        assert array.shape == (5, 2, 4, entry_size)
        assert array.dtype == np.dtype(numpy_dtype)
        assert array.flags.c_contiguous and array.flags.writeable
        assert not array.any()
        array[:] = value
    size_bytes = layout.block_bytes * 5
    other = np.frombuffer(mmap.mmap(cache.file_descriptor, size_bytes), numpy_dtype)
    size = 5 * 2 * 4 * entry_size
    assert other.reshape(6, -1).tolist() == [[value] * size for value in range(1, 7)]
    assert sum(array.nbytes for array in views) == size_bytes


@pytest.mark.parametrize(("head_dim", "int8_bytes"), [(64, 68), (128, 132)])
def test_an_int8_block_counts_its_scales(head_dim, int8_bytes):
    sizes = [KVCacheLayout(1, 1, head_dim, 1, dtype).block_bytes for dtype in ("bfloat16", "int8")]
    assert sizes == [2 * 2 * head_dim, 2 * int8_bytes]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
def test_memory_names_the_bytes_of_every_block(dtype):
    cache = KVCache(KVCacheLayout(3, 2, 8, 4, dtype), num_blocks=5)
    memory = cache.memory()
    assert (memory.num_layers, memory.num_blocks) == (3, 5)
    memory.arena[:] = np.random.default_rng(1).integers(0, 256, memory.arena.size, np.uint8)
    blocks = memory.layer_blocks()
    for layer, arrays in enumerate(cache.layers):
        assert len(blocks[layer]) == len(arrays)
        for plane, array in zip(blocks[layer], arrays, strict=True):
            assert [row.tobytes() for row in plane] == [block.tobytes() for block in array]
    sizes = [plane.block_bytes for plane in memory.planes]
    assert sum(sizes) == cache.layout.block_bytes
    before = memory.arena.copy()
    memory.prefault()
    assert (memory.arena == before).all()


def test_nobody_can_shrink_the_arena():
    cache = KVCache(KVCacheLayout(1, 1, 8, 4), num_blocks=4)
    for size_bytes in (0, 2**20):
        with pytest.raises(PermissionError):
            os.ftruncate(cache.file_descriptor, size_bytes)


def test_close_gives_the_descriptor_back():
    cache = KVCache(KVCacheLayout(1, 1, 8, 4), num_blocks=1)
    descriptor = cache.file_descriptor
    cache.close()
    cache.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_errors_name_the_setting():
    with pytest.raises(ConfigError, match="kv_cache_dtype must be one of bfloat16, float32, int8"):
        KVCacheLayout(1, 1, 8, 4, dtype="int3")
    with pytest.raises(ConfigError, match="at least one block"):
        KVCache(KVCacheLayout(1, 1, 8, 4), num_blocks=0)
    with pytest.raises(ConfigError, match="num_gpu_blocks_override"):
        KVCache(KVCacheLayout(100, 100, 128, 128), num_blocks=2**40)
