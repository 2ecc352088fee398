# SPDX-License-Identifier: Apache-2.0
"""rope: definition, geometry, equal bits everywhere, messages."""

from __future__ import annotations

import numpy as np
import pytest

from fdspec import ops
from fdspec.ops.rope import reference_rope
from tests.ops.support import BACKENDS, assert_same_bits, call, running, settings

MAX_POSITIONS = 50


def tables(half: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.outer(np.arange(MAX_POSITIONS), 100.0 ** -(np.arange(half) / half))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def case(rows: int, heads: int, kv_heads: int, dim: int) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(rows + dim)
    query = generator.normal(size=(rows, heads, dim)).astype(np.float32)
    key = generator.normal(size=(rows, kv_heads, dim)).astype(np.float32)
    positions = generator.integers(0, MAX_POSITIONS, rows).astype(np.int32)
    return query, key, positions, *tables(dim // 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend: str) -> None:
    """A quarter turn takes (a, b) to (-b, a); the halves of a head are the planes' coordinates."""
    cos, sin = np.array([[1, 1], [0, 1]], np.float32), np.array([[0, 0], [1, 0]], np.float32)
    query = np.array([[[1, 2, 3, 4]], [[1, 2, 3, 4]]], np.float32)
    positions = np.array([0, 1], np.int32)
    rotated, key = call(backend, "rope", "rope", query, 2 * query, positions, cos, sin)
    np.testing.assert_array_equal(rotated, [[[1, 2, 3, 4]], [[-3, 2, 1, 4]]])
    np.testing.assert_array_equal(key, 2 * rotated)


@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "dim"),
    [(1, 1, 1, 2), (3, 4, 2, 10), (5, 9, 3, 64), (2, 2, 1, 128), (0, 2, 1, 8)],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_matches_the_definition(
    backend: str, rows: int, heads: int, kv_heads: int, dim: int
) -> None:
    arguments = case(rows, heads, kv_heads, dim)
    result = call(backend, "rope", "rope", *arguments)
    for actual, expected in zip(result, reference_rope(*arguments), strict=True):
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_scores_depend_on_distance_alone() -> None:
    query, key, _, cos, sin = case(1, 1, 1, 64)
    scores = []
    for first in (0, 7, 30):
        positions = np.array([first, first + 9], np.int32)
        rotated, _ = ops.rope(np.concatenate([query, key]), key.repeat(2, 0), positions, cos, sin)
        scores.append(float(rotated[0, 0] @ rotated[1, 0]))
    np.testing.assert_allclose(scores, scores[0], rtol=1e-4)


def test_same_bits_for_any_rows_threads_and_isa() -> None:
    query, key, positions, cos, sin = case(70, 9, 3, 72)
    single = [
        ops.rope(query[i : i + 1], key[i : i + 1], positions[i : i + 1], cos, sin)
        for i in range(70)
    ]
    for isa, num_threads in settings():
        with running(isa, num_threads):
            result = ops.rope(query, key, positions, cos, sin)
        for part in (0, 1):
            assert_same_bits(result[part], np.concatenate([pair[part] for pair in single]))


@pytest.mark.parametrize(
    ("index", "value", "error", "message"),
    [
        (0, np.ones((2, 1, 3), np.float32), ValueError, "query: the head size must be even"),
        (1, np.ones((3, 1, 8), np.float32), ValueError, r"key: expected shape \[2, any, 8\]"),
        (2, np.array([0, 50], np.int32), ValueError, "positions: 50 at row 1 .* 0 .. 49"),
        (2, np.array([-1, 0], np.int32), ValueError, "positions: -1 at row 0"),
        (2, np.array([0, 1]), TypeError, "positions: expected dtype int32, got int64"),
        (3, np.ones((50, 3), np.float32), ValueError, "cos: expected shape"),
        (4, np.ones((49, 4), np.float32), ValueError, r"sin: expected shape \[50, 4\]"),
    ],
)
def test_messages_name_the_argument(index, value, error, message) -> None:
    arguments = list(case(2, 1, 1, 8))
    arguments[index] = value
    with pytest.raises(error, match=message):
        ops.rope(*arguments)
