# SPDX-License-Identifier: Apache-2.0
"""swiglu: definition, accuracy over the whole range, equal bits everywhere, messages."""

from __future__ import annotations

import numpy as np
import pytest

from fdspec import ops
from fdspec.ops.swiglu import reference_swiglu
from tests.ops.support import BACKENDS, assert_same_bits, call, running, settings


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend: str) -> None:
    result = call(backend, "swiglu", "swiglu", np.array([[0, np.log(3), 5, 4]], np.float32))
    np.testing.assert_allclose(result, [[0, np.log(3) * 0.75 * 4]], rtol=1e-6)


@pytest.mark.parametrize(("rows", "dim"), [(0, 4), (1, 1), (3, 15), (2, 16), (5, 97), (4, 1536)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_matches_the_definition(backend: str, rows: int, dim: int) -> None:
    gate_up = np.random.default_rng(dim).normal(0, 4, (rows, 2 * dim)).astype(np.float32)
    result = call(backend, "swiglu", "swiglu", gate_up)
    np.testing.assert_allclose(result, reference_swiglu(gate_up), rtol=5e-7, atol=1e-37)


def test_gates_of_any_size() -> None:
    """Within 3 units in the last place from the smallest to the largest; limits are exact."""
    gates = np.concatenate([np.linspace(-110, 110, 20001), [-np.inf, np.inf, np.nan, -3e38, 3e38]])
    gate_up = np.stack([gates.astype(np.float32), np.ones(len(gates), np.float32)])
    result = ops.swiglu(np.ascontiguousarray(gate_up.reshape(1, -1)))
    expected = reference_swiglu(gate_up.reshape(1, -1))
    np.testing.assert_allclose(result, expected, rtol=4e-7, atol=2e-36)
    assert np.isnan(result[0, -3])


def test_same_bits_for_any_rows_threads_and_isa() -> None:
    generator = np.random.default_rng(0)
    gate_up = generator.normal(0, 30, (65, 2 * 77)).astype(np.float32)
    gate_up[3, 5], gate_up[4, 6] = -np.inf, 1e-41
    expected = np.concatenate([ops.swiglu(gate_up[i : i + 1]) for i in range(65)])
    for isa, num_threads in settings():
        with running(isa, num_threads):
            np.testing.assert_array_equal(ops.swiglu(gate_up), expected)
            finite = np.arange(65) != 3
            assert_same_bits(ops.swiglu(gate_up)[finite], expected[finite])


@pytest.mark.parametrize(
    ("gate_up", "error", "message"),
    [
        (np.ones((2, 3), np.float32), ValueError, "gate_up: needs an even number of columns"),
        (np.ones(4, np.float32), ValueError, "gate_up: expected 2 dimensions"),
        (np.ones((2, 4), np.float16), TypeError, "gate_up: expected dtype float32, got float16"),
    ],
)
def test_messages_name_the_argument(gate_up, error, message) -> None:
    with pytest.raises(error, match=message):
        ops.swiglu(gate_up)
