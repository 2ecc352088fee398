# SPDX-License-Identifier: Apache-2.0
"""append_paged_kv and compact_kv: what is written where, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fdspec.ops import append_paged_kv, compact_kv
from fdspec.utils.bfloat16 import from_bfloat16, to_bfloat16
from fdspec.utils.int8_entries import codes_and_scales, to_int8_entries
from tests.ops.support import BACKENDS, assert_same_bits, call, running, settings

BLOCKS, KV_HEADS = 6, 2
# What a cache of each dtype keeps of float32 rows.
STORED: dict[str, Any] = {
    "float32": np.asarray,
    "bfloat16": to_bfloat16,
    "int8": to_int8_entries,
}


def caches(dtype: str, block_size: int, head_dim: int, seed: int = 0) -> tuple[Any, Any]:
    """Two caches with something in every entry."""
    generator = np.random.default_rng(seed)
    shape = (BLOCKS, KV_HEADS, block_size, head_dim)
    values = [generator.normal(size=shape).astype(np.float32) for _ in range(2)]
    return STORED[dtype](values[0]), STORED[dtype](values[1])


def rows(count: int, head_dim: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(1)
    shape = (count, KV_HEADS, head_dim)
    return (
        generator.normal(size=shape).astype(np.float32),
        generator.normal(size=shape).astype(np.float32),
    )


@pytest.mark.parametrize("count", [0, 1, 5, 600])
@pytest.mark.parametrize("head_dim", [8, 40, 64])
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_append_writes_the_slots_and_nothing_else(
    backend: str, dtype: str, head_dim: int, count: int
) -> None:
    block_size = 128 if count > 5 else 3
    key_cache, value_cache = caches(dtype, block_size, head_dim)
    key, value = rows(count, head_dim)
    slots = np.random.default_rng(2).permutation(BLOCKS * block_size)[:count].astype(np.int64)
    slots[::4] = -1
    expected = key_cache.copy(), value_cache.copy()
    for row, slot in enumerate(slots):
        if slot >= 0:
            block, offset = divmod(slot, block_size)
            expected[0][block, :, offset] = STORED[dtype](key[row])
            expected[1][block, :, offset] = STORED[dtype](value[row])
    call(backend, "append_paged_kv", "append_paged_kv", key, value, key_cache, value_cache, slots)
    assert_same_bits(key_cache, expected[0])
    assert_same_bits(value_cache, expected[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_append_rounds_to_nearest_even(backend: str) -> None:
    bits = np.zeros((1, 1, 8), np.uint32)
    # Half-way cases, just above and below, an overflow to infinity, infinity, NaN, -0.
    bits[0, 0] = [
        0x3F808000,
        0x3F818000,
        0x3F808001,
        0x3F807FFF,
        0x7F7FFFFF,
        0xFF800000,
        0x7F800001,
        0x80000000,
    ]
    expected = [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0xFF80, 0x7FC0, 0x8000]
    values = bits.view(np.float32)
    key_cache = np.zeros((1, 1, 1, 8), np.uint16)
    value_cache = key_cache.copy()
    slots = np.zeros(1, np.int64)
    call(
        backend, "append_paged_kv", "append_paged_kv", values, values, key_cache, value_cache, slots
    )
    assert key_cache[0, 0, 0].tolist() == expected
    assert value_cache[0, 0, 0].tolist() == expected


# Rows of eight, the codes and the scale that an int8 cache keeps of them.
INT8_ROWS: dict[str, tuple[list[float], list[int], float]] = {
    "ties to even": (
        [127, -127, 0.5, 1.5, 2.5, -0.5, -126.5, 63],
        [127, -127, 0, 2, 2, 0, -126, 63],
        1,
    ),
    "scaled": ([-2.54, 1, 0.01, 0, 0, 0, 0, 2.53], [-127, 50, 0, 0, 0, 0, 0, 126], 0.02),
    "zero": ([0, -0.0, 0, 0, 0, 0, 0, 0], [0] * 8, 0),
    "denormal": ([1e-40] * 8, [0] * 8, 0),
    "too small": ([2.0**-100] * 8, [0] * 8, 0),
    "smallest": ([2.0**-99] * 8, [127] * 8, 2.0**-99 / 127),
    "largest": ([-3.4028235e38, *[1e38] * 7], [-127, *[37] * 7], 3.4028235e38 / 127),
    "infinity": ([1, np.inf, *[3] * 6], [0] * 8, np.nan),
    "negative infinity": ([*[3] * 7, -np.inf], [0] * 8, np.nan),
    "no number": ([1, 2, 3, np.nan, np.inf, 4, 5, 6], [0] * 8, np.nan),
}


@pytest.mark.parametrize("name", INT8_ROWS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_append_rounds_to_codes_and_a_scale(backend: str, name: str) -> None:
    numbers, codes, scale = INT8_ROWS[name]
    values = np.array([[numbers]], np.float32)
    key_cache = np.full((1, 1, 2, 12), 99, np.int8)
    value_cache = key_cache.copy()
    slots = np.zeros(1, np.int64)
    call(
        backend,
        "append_paged_kv",
        "append_paged_kv",
        values,
        -values,
        key_cache,
        value_cache,
        slots,
    )
    found, scales = codes_and_scales(key_cache[0, 0, :1])
    assert found.tolist() == [codes]
    np.testing.assert_array_equal(scales, np.float32(scale))
    found, scales = codes_and_scales(value_cache[0, 0, :1])
    assert found.tolist() == [[-code for code in codes]]
    np.testing.assert_array_equal(scales, np.float32(scale))
    assert (key_cache[0, 0, 1] == 99).all() and (value_cache[0, 0, 1] == 99).all()


@pytest.mark.parametrize(("isa", "num_threads"), settings())
def test_append_gives_the_bits_of_the_definition_at_every_level(isa: str, num_threads: int) -> None:
    generator = np.random.default_rng(5)
    shape = (400, KV_HEADS, 24)
    magnitudes = 10.0 ** generator.uniform(-38, 38, (*shape[:2], 1))
    values = (generator.normal(size=shape) * magnitudes).astype(np.float32)
    values[::50, 0, 3] = np.nan
    key_cache = np.zeros((1, KV_HEADS, 400, 28), np.int8)
    value_cache = key_cache.copy()
    with running(isa, num_threads):
        append_paged_kv(values, values, key_cache, value_cache, np.arange(400))
    expected = np.ascontiguousarray(to_int8_entries(values).swapaxes(0, 1))[None]
    assert_same_bits(key_cache, expected)
    assert_same_bits(value_cache, expected)


def test_int8_entries_are_within_half_a_step() -> None:
    values = np.random.default_rng(3).normal(size=(50, 64)).astype(np.float32)
    codes, scales = codes_and_scales(to_int8_entries(values))
    assert np.abs(codes).max(axis=1).tolist() == [127] * 50
    steps = np.abs(codes * scales[:, None] - values) / scales[:, None]
    assert steps.max() < 0.5001


def test_bfloat16_widens_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    assert_same_bits(from_bfloat16(bits).view(np.uint32), bits.astype(np.uint32) << np.uint32(16))
    numbers = bits[~np.isnan(from_bfloat16(bits))]
    assert_same_bits(to_bfloat16(from_bfloat16(numbers)), numbers)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_compact_moves_entries_in_order(backend: str, dtype: str) -> None:
    key_cache, value_cache = caches(dtype, 4, 24)
    before = key_cache.copy(), value_cache.copy()
    # Entries 5, 7, 8 go to 4, 5, 7: each destination is free when its turn comes.
    sources, destinations = np.array([3, 5, 7, 8]), np.array([3, 4, 5, 7])
    call(backend, "compact_kv", "compact_kv", key_cache, value_cache, sources, destinations)
    moved = {4: 5, 5: 7, 7: 8}
    for after, old in zip((key_cache, value_cache), before, strict=True):
        for slot in range(BLOCKS * 4):
            source = moved.get(slot, slot)
            np.testing.assert_array_equal(
                after[slot // 4, :, slot % 4], old[source // 4, :, source % 4]
            )


@pytest.mark.parametrize("backend", BACKENDS)
def test_compact_nothing(backend: str) -> None:
    key_cache, value_cache = caches("float32", 4, 8)
    before = key_cache.copy()
    none = np.zeros(0, np.int64)
    call(backend, "compact_kv", "compact_kv", key_cache, value_cache, none, none)
    assert_same_bits(key_cache, before)


@pytest.mark.parametrize("slot", [-2, BLOCKS * 4])
def test_slots_outside_the_cache_are_refused(slot: int) -> None:
    key_cache, value_cache = caches("float32", 4, 8)
    key, value = rows(1, 8)
    good, bad = np.array([0]), np.array([slot])
    with pytest.raises(ValueError, match=f"^slots: slot {slot} is outside"):
        append_paged_kv(key, value, key_cache, value_cache, bad)
    with pytest.raises(ValueError, match=f"^source_slots: slot {slot}"):
        compact_kv(key_cache, value_cache, bad, good)
    with pytest.raises(ValueError, match=f"^destination_slots: slot {slot}"):
        compact_kv(key_cache, value_cache, good, bad)


def test_errors_name_the_argument() -> None:
    key_cache, value_cache = caches("bfloat16", 4, 8)
    key, value = rows(2, 8)
    slots = np.array([0, 1])
    with pytest.raises(TypeError, match="^value_cache"):
        append_paged_kv(key, value, key_cache, value_cache.view(np.int16), slots)
    with pytest.raises(ValueError, match="^key: expected shape"):
        append_paged_kv(key[..., None], value, key_cache, value_cache, slots)
    with pytest.raises(ValueError, match="^value: expected shape"):
        append_paged_kv(key, value[:1], key_cache, value_cache, slots)
    with pytest.raises(TypeError, match="^slots"):
        append_paged_kv(key, value, key_cache, value_cache, slots.astype(np.int32))
    with pytest.raises(ValueError, match="^destination_slots"):
        compact_kv(key_cache, value_cache, slots, slots[:1])
    with pytest.raises(ValueError, match="^key_cache: an int8 entry has head_dim codes and"):
        scales_only = np.zeros((1, KV_HEADS, 4, 4), np.int8)
        append_paged_kv(key, value, scales_only, scales_only, slots)
    key_cache.flags.writeable = False
    with pytest.raises(ValueError, match="^key_cache: is read-only"):
        append_paged_kv(key, value, key_cache, value_cache, slots)
