# SPDX-License-Identifier: Apache-2.0
"""Swapped blocks come back as they were; space that cannot be had is done without."""

import logging

import numpy as np
import pytest

from fdspec.core import ConfigError
from fdspec.kv.cache import KVCache, KVCacheLayout
from fdspec.kv.swap_space import open_swap_space

LAYOUT = KVCacheLayout(num_layers=3, num_kv_heads=2, head_dim=8, block_size=4)


@pytest.fixture
def cache():
    """Every entry of the cache is different."""
    cache = KVCache(LAYOUT, num_blocks=5)
    count = 0
    for layer in cache.layers:
        for array in layer:
            array[:] = np.arange(count, count + array.size).reshape(array.shape)
            count += array.size
    yield cache
    cache.close()


def contents(cache, block_id):
    return [array[block_id].copy() for layer in cache.layers for array in layer]


@pytest.mark.parametrize("in_file", [False, True])
def test_blocks_come_back_as_they_were(cache, tmp_path, in_file):
    folder = str(tmp_path) if in_file else None
    space = open_swap_space(cache, 3 * LAYOUT.block_bytes + 5, folder)
    assert space is not None and space.num_slots == 3 and space.block_ms > 0
    expected = contents(cache, 4)
    cache.read_block(4, space.slots[2])
    cache.copy_blocks([(0, 4), (1, 0)])
    for got, want in zip(contents(cache, 0), contents(cache, 1), strict=True):
        assert np.array_equal(got, want)
    cache.write_block(3, space.slots[2])
    for got, want in zip(contents(cache, 3), expected, strict=True):
        assert np.array_equal(got, want)
    assert list(tmp_path.iterdir()) == [], "the file has no name"


@pytest.mark.parametrize(
    ("size_bytes", "folder"),
    [(2**60, None), (2**50, "."), (10, None)],
)
def test_what_cannot_be_had_is_told_once(cache, tmp_path, caplog, monkeypatch, size_bytes, folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("fdspec"), "propagate", True)
    with caplog.at_level("WARNING"):
        assert open_swap_space(cache, size_bytes, folder) is None
    (record,) = caplog.records
    assert "swap_space" in record.message and "computed again" in record.message


def test_a_folder_that_is_missing_is_a_mistake(cache):
    with pytest.raises(ConfigError, match="swap_space_path: there is no folder no/such/folder"):
        open_swap_space(cache, 10**6, "no/such/folder")


def test_none_is_made_for_nothing(cache, caplog):
    assert open_swap_space(cache, 0) is None and not caplog.records
