# SPDX-License-Identifier: Apache-2.0
"""merge_attention_states: equal to attention over all keys at once; empty states stay empty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fdspec.ops import merge_attention_states
from tests.ops.support import BACKENDS, assert_same_bits, call, running, settings


def state(scores: Any, values: Any) -> tuple[Any, Any]:
    """Output [rows, heads, dim] and lse [rows, heads] of softmax(scores) . values, in float64."""
    largest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    output = np.einsum("rhk,hkd->rhd", weights / total, values)
    return output.astype(np.float32), (largest + np.log(total))[..., 0].astype(np.float32)


@pytest.mark.parametrize("dim", [1, 16, 40])
@pytest.mark.parametrize("rows", [0, 1, 600])
@pytest.mark.parametrize("backend", BACKENDS)
def test_merge_equals_attention_over_all_keys(backend: str, rows: int, dim: int) -> None:
    generator = np.random.default_rng(rows)
    scores = generator.normal(0, 4, (rows, 3, 20))
    values = generator.normal(size=(3, 20, dim))
    merged = call(
        backend,
        "merge_attention_states",
        "merge_attention_states",
        *state(scores[..., :7], values[:, :7]),
        *state(scores[..., 7:], values[:, 7:]),
    )
    for actual, expected in zip(merged, state(scores, values), strict=True):
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_states(backend: str) -> None:
    # Heads: both empty, first empty, second empty. What an empty state holds must not matter.
    output_a = np.array([[[np.nan], [np.inf], [3.0]]], np.float32)
    output_b = np.array([[[np.nan], [5.0], [np.nan]]], np.float32)
    lse_a = np.array([[-np.inf, -np.inf, 0.5]], np.float32)
    lse_b = np.array([[-np.inf, -1.5, -np.inf]], np.float32)
    output, lse = call(
        backend,
        "merge_attention_states",
        "merge_attention_states",
        output_a,
        lse_a,
        output_b,
        lse_b,
    )
    assert output.ravel().tolist() == [0.0, 5.0, 3.0]
    assert lse.ravel().tolist() == [-np.inf, -1.5, 0.5]


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend: str) -> None:
    # Weights 1 : 3.
    output, lse = call(
        backend,
        "merge_attention_states",
        "merge_attention_states",
        np.full((1, 1, 2), 4.0, np.float32),
        np.zeros((1, 1), np.float32),
        np.full((1, 1, 2), 8.0, np.float32),
        np.full((1, 1), np.log(3), np.float32),
    )
    np.testing.assert_allclose(output.ravel(), [7.0, 7.0], rtol=1e-6)
    np.testing.assert_allclose(lse, [[np.log(4)]], rtol=1e-6)


def test_levels_and_threads_give_the_same_bits() -> None:
    generator = np.random.default_rng(0)
    outputs = [generator.normal(size=(700, 4, 24)).astype(np.float32) for _ in range(2)]
    lses = [generator.normal(0, 9, size=(700, 4)).astype(np.float32) for _ in range(2)]
    lses[0][::5] = -np.inf
    arguments = (outputs[0], lses[0], outputs[1], lses[1])
    expected = merge_attention_states(*arguments)
    for isa, num_threads in settings():
        with running(isa, num_threads):
            for actual, other in zip(merge_attention_states(*arguments), expected, strict=True):
                assert_same_bits(actual, other)


def test_errors_name_the_argument() -> None:
    output, lse = np.zeros((2, 3, 8), np.float32), np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match="^lse_a"):
        merge_attention_states(output, lse[:1], output, lse)
    with pytest.raises(ValueError, match="^output_b"):
        merge_attention_states(output, lse, output[:, :1], lse)
    with pytest.raises(TypeError, match="^lse_b"):
        merge_attention_states(output, lse, output, lse.astype(np.float64))
