# SPDX-License-Identifier: Apache-2.0
"""Attention: equal to its definition, and the same bits however the work is cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fdspec.ops import cascade_append_attention, isa, supported_isas
from fdspec.ops.cascade_append_attention import reference_cascade_append_attention
from tests.ops.attention_steps import (
    Cache,
    Shape,
    Tokens,
    attend,
    chain,
    mixed_step,
    random_tokens,
)
from tests.ops.support import BACKENDS, assert_same_bits, call, running, settings

SHAPES = {
    "grouped": Shape(),
    "float32": Shape(dtype="float32"),
    "one_kv_head": Shape(heads=7, kv_heads=1, head_dim=16),
    "no_groups": Shape(heads=3, kv_heads=3, head_dim=64),
    "odd_dim": Shape(heads=4, kv_heads=2, head_dim=40),
    "short_dim": Shape(heads=2, kv_heads=1, head_dim=8, dtype="float32"),
    "long_dim": Shape(heads=2, kv_heads=1, head_dim=104),
    "small_blocks": Shape(block_size=16),
    "odd_blocks": Shape(block_size=7, dtype="float32"),
    "single_slots": Shape(block_size=1),
    "many_heads": Shape(heads=200, kv_heads=1, head_dim=8),
    "int8": Shape(dtype="int8"),
    "int8_no_groups": Shape(heads=3, kv_heads=3, head_dim=64, dtype="int8"),
    "int8_odd_dim": Shape(heads=4, kv_heads=2, head_dim=40, dtype="int8"),
    "int8_short_dim": Shape(heads=2, kv_heads=1, head_dim=8, dtype="int8"),
    "int8_long_dim": Shape(heads=2, kv_heads=1, head_dim=104, dtype="int8"),
    "int8_odd_blocks": Shape(heads=9, kv_heads=3, head_dim=64, block_size=7, dtype="int8"),
    "int8_many_heads": Shape(heads=200, kv_heads=1, head_dim=24, dtype="int8"),
}
DTYPES = ["float32", "bfloat16", "int8"]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("backend", BACKENDS)
def test_matches_the_definition(backend: str, shape: Shape) -> None:
    arguments = mixed_step(shape)
    expected = reference_cascade_append_attention(*arguments)
    actual = call(backend, "cascade_append_attention", "cascade_append_attention", *arguments)
    assert actual.dtype == np.float32
    if shape.dtype == "float32":
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)
    else:
        # A weight that the rounding's edge is close to may fall to the other side: that is rare.
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-2)
        assert np.abs(actual - expected).mean() < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend: str) -> None:
    shape = Shape(heads=1, kv_heads=1, head_dim=8, dtype="float32")
    # Scores of the second row: ln 1 and ln 3; so its weights are 1/4 and 3/4.
    query = np.zeros((2, 1, 8), np.float32)
    query[:, 0, 0] = np.sqrt(8)
    key = np.zeros((2, 1, 8), np.float32)
    key[1, 0, 0] = np.log(3)
    value = np.zeros((2, 1, 8), np.float32)
    value[0, 0, :2] = [4, 8]
    value[1, 0, :2] = [8, -8]
    cache = Cache(shape, [2])
    cache.append(0, 0, Tokens(query, key, value))
    arguments = cache.arguments([query], [0], [chain(2)])
    result = call(backend, "cascade_append_attention", "cascade_append_attention", *arguments)
    np.testing.assert_allclose(result[:, :2], [[4, 8], [7, -4]], rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_levels_and_threads_give_the_same_bits(shape: Shape) -> None:
    arguments = mixed_step(shape)
    expected = cascade_append_attention(*arguments)
    for level, num_threads in settings():
        with running(level, num_threads):
            assert_same_bits(cascade_append_attention(*arguments), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("exponents", [(-45, 2), (-42, -36), (-25, -15)])
def test_levels_give_the_same_bits_of_tiny_numbers(exponents: tuple[int, int], dtype: str) -> None:
    shape = Shape(heads=6, kv_heads=2, head_dim=96, dtype=dtype)
    tokens = random_tokens(shape, 180)
    generator = np.random.default_rng(1)
    for array in (tokens.query, tokens.key, tokens.value):
        array *= 10.0 ** generator.uniform(*exponents, array.shape)
    tokens.query[::2] *= 1e15
    expected = attend(shape, tokens[:100], tokens[100:], chain(80))
    assert np.isfinite(expected).all()
    for level, num_threads in settings():
        with running(level, num_threads):
            assert_same_bits(attend(shape, tokens[:100], tokens[100:], chain(80)), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("num_threads", [2, 3, 8])
@pytest.mark.parametrize("num_rows", [1, 6, 40])
def test_long_context_split_over_threads_gives_the_same_bits(
    num_rows: int, num_threads: int, dtype: str
) -> None:
    shape = Shape(heads=3, kv_heads=1, head_dim=16, dtype=dtype)
    tokens = random_tokens(shape, 3000 + num_rows)
    arguments = (shape, tokens[:3000], tokens[3000:], chain(num_rows))
    with running(isa(), 1):
        expected = attend(*arguments)
    with running(isa(), num_threads):
        assert_same_bits(attend(*arguments), expected)


@pytest.mark.parametrize("chunk", [1, 7, 64, 100])
@pytest.mark.parametrize(
    "shape", [Shape(), Shape(dtype="float32", head_dim=24), Shape(dtype="int8", head_dim=24)]
)
def test_chunks_give_the_bits_of_the_whole_prompt(shape: Shape, chunk: int) -> None:
    tokens = random_tokens(shape, 230)
    whole = attend(shape, tokens[:0], tokens, chain(len(tokens)))
    cache = Cache(shape, [len(tokens)])
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        cache.append(0, start, part)
        rows = cascade_append_attention(*cache.arguments([part.query], [start], [chain(len(part))]))
        assert_same_bits(rows, whole[start : start + chunk])


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("block_size", [1, 7, 16, 128])
def test_block_size_changes_no_bit(block_size: int, dtype: str) -> None:
    shape = Shape(dtype=dtype)
    tokens = random_tokens(shape, 150)
    expected = attend(shape, tokens[:100], tokens[100:], chain(50))
    other = attend(replace(shape, block_size=block_size), tokens[:100], tokens[100:], chain(50))
    assert_same_bits(other, expected)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(dtype="float32"),
        Shape(block_size=16),
        Shape(block_size=7),
        Shape(dtype="int8"),
        Shape(block_size=16, dtype="int8"),
    ],
)
def test_shared_prefixes_give_the_bits_of_sequences_alone(shape: Shape) -> None:
    # Three that share 260 tokens, of which two share more; one by itself; two that share 140.
    steps = [(300, chain(5)), (260, [-1, 0, 0, 1]), (261, chain(1)), (70, chain(9))]
    steps += [(140, chain(70)), (150, chain(1))]
    # A tree: all of them share 130 tokens, the first two and the last two 260, two of these 390.
    steps += [(400, chain(2)), (300, chain(1)), (131, chain(3)), (450, chain(1)), (420, chain(4))]
    sharers = {1: (0, 260), 2: (0, 250), 5: (4, 140)}
    sharers |= {7: (6, 260), 8: (6, 130), 9: (6, 130), 10: (9, 390)}
    cache = Cache(shape, [context + len(parents) for context, parents in steps])
    queries = []
    for sequence, (context, parents) in enumerate(steps):
        if sequence in sharers:
            owner, num_tokens = sharers[sequence]
            num_blocks = num_tokens // shape.block_size
            cache.table[sequence, :num_blocks] = cache.table[owner, :num_blocks]
        tokens = random_tokens(shape, context + len(parents), sequence)
        skipped = sharers.get(sequence, (0, 0))[1] // shape.block_size * shape.block_size
        cache.append(sequence, skipped, tokens[skipped:])
        queries.append(tokens.query[context:])
    contexts = [context for context, _ in steps]
    arguments = cache.arguments(queries, contexts, [parents for _, parents in steps])
    table, splits = arguments[3], arguments[4]
    for level, num_threads in settings():
        with running(level, num_threads):
            batch = cascade_append_attention(*arguments)
        for sequence, (context, parents) in enumerate(steps):
            alone = cache.arguments([queries[sequence]], [context], [parents])
            alone = (*alone[:3], table[sequence : sequence + 1], *alone[4:])
            rows = slice(splits[sequence], splits[sequence + 1])
            assert_same_bits(batch[rows], cascade_append_attention(*alone))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_alone_have_the_bits_they_have_in_a_batch(dtype: str) -> None:
    shape = Shape(dtype=dtype)
    query, key, value, table, splits, contexts, parents, scale = mixed_step(shape)
    batch = cascade_append_attention(query, key, value, table, splits, contexts, parents, scale)
    for sequence, context in enumerate(contexts):
        rows = slice(splits[sequence], splits[sequence + 1])
        alone = cascade_append_attention(
            query[rows],
            key,
            value,
            table[sequence : sequence + 1],
            np.array([0, rows.stop - rows.start], np.int32),
            np.array([context], np.int32),
            parents[rows],
            scale,
        )
        assert_same_bits(alone, batch[rows])


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("context", [0, 5, 60, 63, 64, 130])
def test_tree_rows_have_the_bits_of_their_decoded_path(context: int, dtype: str) -> None:
    shape = Shape(dtype=dtype)
    generator = np.random.default_rng(context)
    parents = [int(generator.integers(-1, row)) for row in range(24)]
    tokens = random_tokens(shape, context + len(parents), context)
    tree = attend(shape, tokens[:context], tokens[context:], parents)
    for row in range(len(parents)):
        path: list[int] = []
        node = row
        while node >= 0:
            path.insert(0, context + node)
            node = parents[node]
        before = tokens[[*range(context), *path[:-1]]]
        decoded = attend(shape, before, tokens[path[-1:]], chain(1))
        assert_same_bits(decoded[0], tree[row])


def test_deep_tree_has_the_bits_of_its_decoded_paths() -> None:
    shape = Shape(heads=2, kv_heads=1, head_dim=16)
    # Two interleaved chains of 100 tokens each: paths of more than one part.
    parents = [row - 2 if row > 1 else -1 for row in range(200)]
    tokens = random_tokens(shape, 210)
    tree = attend(shape, tokens[:10], tokens[10:], parents)
    for branch in (0, 1):
        path = [*range(10), *range(10 + branch, 210, 2)]
        plain = attend(shape, tokens[:0], tokens[path], chain(110))
        assert_same_bits(tree[branch::2], plain[10:])


def test_more_than_512_rows() -> None:
    shape = Shape(heads=2, kv_heads=1, head_dim=8, dtype="float32")
    tokens = random_tokens(shape, 700)
    result = attend(shape, tokens[:0], tokens, chain(700))
    # The mean over a causal window by cumulative sums, in float64.
    scores = np.einsum("qhd,kd->hqk", tokens.query, tokens.key[:, 0]).astype(np.float64)
    weights = np.exp(scores * 8**-0.5) * np.tri(700)
    expected = np.einsum("hqk,kd->qhd", weights, tokens.value[:, 0])
    expected /= weights.sum(axis=2).T[:, :, None]
    np.testing.assert_allclose(result.reshape(700, 2, 8), expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows(backend: str) -> None:
    shape = Shape()
    for contexts in ([], [3], [0, 10]):
        cache = Cache(shape, [10 for _ in contexts])
        arguments = cache.arguments(
            [np.zeros((0, 6, 32), np.float32)] * len(contexts), contexts, []
        )
        result = call(backend, "cascade_append_attention", "cascade_append_attention", *arguments)
        assert result.shape == (0, 6 * 32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", supported_isas())
def test_later_rows_cannot_spoil_earlier_ones(level: str, dtype: str) -> None:
    shape = Shape(dtype=dtype)
    tokens = random_tokens(shape, 80)
    expected = attend(shape, tokens[:40], tokens[40:], chain(40))
    tokens.key[60:] = np.nan
    tokens.value[60:] = np.inf
    tokens.query[60:] = np.nan
    with running(level, 2):
        spoilt = attend(shape, tokens[:40], tokens[40:], chain(40))
    assert_same_bits(spoilt[:20], expected[:20])


@pytest.mark.parametrize("cache", ["key", "value"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_int8_entries_that_are_no_numbers_spoil_the_rows_that_see_them(
    bad: float, cache: str
) -> None:
    shape = Shape(dtype="int8")
    tokens = random_tokens(shape, 150)
    # Row 60 of 110, head 0 of 2.
    getattr(tokens, cache)[100, 0, 5] = bad
    expected = attend(shape, tokens[:40], tokens[40:], chain(110)).reshape(110, 2, -1)
    is_nan = np.isnan(expected)
    assert is_nan[60:, 0].all()
    assert not is_nan[:60].any() and not is_nan[:, 1].any()
    for level, num_threads in settings():
        with running(level, num_threads):
            result = attend(shape, tokens[:40], tokens[40:], chain(110)).reshape(110, 2, -1)
        np.testing.assert_array_equal(result, expected)


def test_int8_scales_count() -> None:
    shape = Shape(heads=1, kv_heads=1, head_dim=8, dtype="int8")
    # Keys 1 and 3 times the query's direction, values 2 and -1e4: by hand.
    query = np.zeros((2, 1, 8), np.float32)
    query[:, 0, 0] = np.sqrt(8)
    key = np.zeros((2, 1, 8), np.float32)
    key[:, 0, 0] = [0, np.log(3)]
    value = np.zeros((2, 1, 8), np.float32)
    value[:, 0, 1] = [2, -1e4]
    tokens = Tokens(query, key, value)
    result = attend(shape, tokens[:0], tokens, chain(2))
    np.testing.assert_allclose(result[:, 1], [2, 0.25 * 2 - 0.75 * 1e4], rtol=4e-3)
    assert (result[:, [0, 2, 3, 4, 5, 6, 7]] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_huge_scores_stay_finite(dtype: str) -> None:
    shape = Shape(dtype=dtype)
    tokens = random_tokens(shape, 100)
    tokens.query[:] *= 1e4
    result = attend(shape, tokens[:50], tokens[50:], chain(50))
    assert np.isfinite(result).all()


def test_arguments_are_not_changed() -> None:
    arguments = mixed_step(Shape())
    copies = [np.copy(argument) for argument in arguments]
    cascade_append_attention(*arguments)
    for argument, copy in zip(arguments, copies, strict=True):
        np.testing.assert_array_equal(argument, copy)


def _with(index: int, change: Any) -> Any:
    def apply(arguments: list[Any]) -> None:
        arguments[index] = change(arguments[index])

    return apply


def _set(index: int, position: Any, value: Any) -> Any:
    def apply(arguments: list[Any]) -> None:
        arguments[index] = arguments[index].copy()
        arguments[index][position] = value

    return apply


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (_with(0, lambda a: a.astype(np.float64)), TypeError, "query"),
        (_with(0, lambda a: np.ascontiguousarray(a[:, :5])), ValueError, "query: 5 heads"),
        (_with(0, lambda a: a[:, :, :16]), ValueError, "query"),
        (_with(1, lambda a: a.view(np.int16)), TypeError, "key_cache"),
        (_with(2, lambda a: a[:1]), ValueError, "value_cache"),
        (_with(3, lambda a: a.astype(np.int64)), TypeError, "block_table"),
        (
            _with(3, lambda a: np.ascontiguousarray(a[:, :1])),
            ValueError,
            "block_table: the 70 tokens",
        ),
        (_set(3, (0, 0), -1), ValueError, "block_table: block -1 of sequence 0"),
        (_set(3, (0, 1), 10**6), ValueError, "block_table: block 1000000"),
        (_with(4, lambda a: a[:-1]), ValueError, "row_splits"),
        (_set(4, 0, 1), ValueError, "row_splits: must start with 0"),
        (_set(4, 1, 10**6), ValueError, "row_splits: must not decrease"),
        (_set(4, 7, 3), ValueError, "row_splits"),
        (_set(5, 1, -1), ValueError, "context_lens"),
        (_set(6, 3, 3), ValueError, "parents: row 3 of sequence 0 has parent 3"),
        (_set(6, 0, -2), ValueError, "parents: row 0 of sequence 0 has parent -2"),
    ],
)
def test_errors_name_the_argument(change: Any, error: type[Exception], message: str) -> None:
    arguments = list(mixed_step(Shape()))
    change(arguments)
    with pytest.raises(error, match=f"^{message}"):
        cascade_append_attention(*arguments)
