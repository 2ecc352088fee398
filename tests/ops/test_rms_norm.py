# SPDX-License-Identifier: Apache-2.0
"""rms_norm: definition, hand-worked values, equal bits everywhere, messages."""

from __future__ import annotations

import numpy as np
import pytest

from fdspec import ops
from fdspec.ops.rms_norm import reference_rms_norm
from tests.ops.support import BACKENDS, assert_same_bits, call, running, settings

EPSILON = 1e-5


def case(rows: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(rows * 1000 + dim)
    x = generator.normal(0, 3, (rows, dim)).astype(np.float32)
    return x, generator.normal(1, 0.2, dim).astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend: str) -> None:
    x = np.array([[3, 4], [0, 0]], np.float32)
    weight = np.array([1, 10], np.float32)
    result = call(backend, "rms_norm", "rms_norm", x, weight, 0.5)
    scale = 1 / np.sqrt(12.5 + 0.5)
    np.testing.assert_allclose(result, [[3 * scale, 40 * scale], [0, 0]], rtol=1e-6)


@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (3, 15), (2, 16), (5, 63), (4, 64), (9, 577)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_matches_the_definition(backend: str, rows: int, dim: int) -> None:
    x, weight = case(rows, dim)
    before = x.copy()
    result = call(backend, "rms_norm", "rms_norm", x, weight, EPSILON)
    np.testing.assert_allclose(result, reference_rms_norm(x, weight, EPSILON), rtol=1e-6)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows(backend: str) -> None:
    x, weight = case(0, 8)
    result = call(backend, "rms_norm", "rms_norm", x, weight, EPSILON)
    assert result.shape == (0, 8)
    assert result.dtype == np.float32


@pytest.mark.parametrize(("rows", "dim"), [(70, 576), (64, 33)])
def test_same_bits_for_any_rows_threads_and_isa(rows: int, dim: int) -> None:
    x, weight = case(rows, dim)
    expected = np.concatenate([ops.rms_norm(x[i : i + 1], weight, EPSILON) for i in range(rows)])
    for isa, num_threads in settings():
        with running(isa, num_threads):
            assert_same_bits(ops.rms_norm(x, weight, EPSILON), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e-42, 3e38])
def test_extreme_values_do_not_spread(value: float) -> None:
    x, weight = case(3, 40)
    expected = ops.rms_norm(x, weight, EPSILON)
    x[1, 7] = value
    for isa, num_threads in settings():
        with running(isa, num_threads):
            result = ops.rms_norm(x, weight, EPSILON)
        assert_same_bits(result[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize(
    ("x", "weight", "error", "message"),
    [
        (np.ones((2, 4)), np.ones(4, np.float32), TypeError, "x: unsupported dtype float64"),
        (np.ones((2, 4), np.int32), np.ones(4, np.float32), TypeError, "x: expected .* float32"),
        (np.ones(4, np.float32), np.ones(4, np.float32), ValueError, "x: expected 2 dimensions"),
        (np.ones((2, 4), np.float32), np.ones(5, np.float32), ValueError, r"weight: .* \[4\]"),
        (np.ones((4, 2), np.float32).T, np.ones(4, np.float32), ValueError, "x: .*contiguous"),
        ([[1.0]], np.ones(1, np.float32), TypeError, "x: expected a numpy array .* got list"),
    ],
)
def test_messages_name_the_argument(x, weight, error, message) -> None:
    with pytest.raises(error, match=message):
        ops.rms_norm(x, weight, EPSILON)
