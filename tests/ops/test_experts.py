# SPDX-License-Identifier: Apache-2.0
"""route_experts and expert_mlp: definition, ties, every format, equal bits, messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fdspec import ops
from fdspec.ops import WeightFormat
from fdspec.ops.experts import reference_expert_mlp, reference_route_experts
from tests.ops.support import BACKENDS, assert_same_bits, call, running, settings
from tests.ops.weight_cases import FORMATS, matrix

HIDDEN, FFN, EXPERTS, CHOSEN = 48, 40, 7, 3


def logits_of(rows: int, num_experts: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (rows, num_experts)).astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_routing_by_hand(backend: str) -> None:
    logits = np.log(np.array([[1, 4, 2, 1]], np.float32))
    experts, factors = call(backend, "experts", "route_experts", logits, None, 3, normalize=False)
    # 0 and 3 are equal: the lower number wins.
    assert experts.tolist() == [[1, 2, 0]]
    np.testing.assert_allclose(factors, [[0.5, 0.25, 0.125]], rtol=1e-6)
    bias = np.array([0, 0, 0, 0.2], np.float32)
    experts, factors = call(backend, "experts", "route_experts", logits, bias, 2, normalize=True)
    # The bias decides who is chosen, not with which factor.
    assert experts.tolist() == [[1, 3]]
    np.testing.assert_allclose(factors, [[0.8, 0.2]], rtol=1e-6)
    _, factors = call(
        backend, "experts", "route_experts", logits, bias, 2, normalize=True, smallest_sum=1.25
    )
    np.testing.assert_allclose(factors, [[0.4, 0.1]], rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "num_experts", "num_chosen"), [(0, 4, 2), (1, 1, 1), (5, 16, 16), (9, 70, 6)]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_routing_matches_the_definition(
    backend: str, rows: int, num_experts: int, num_chosen: int
) -> None:
    logits = logits_of(rows, num_experts)
    bias = np.random.default_rng(1).normal(0, 0.1, num_experts).astype(np.float32)
    for arguments in ((logits, None, num_chosen), (logits, bias, num_chosen)):
        options: dict[str, Any] = {"normalize": True, "smallest_sum": 1e-12}
        experts, factors = call(backend, "experts", "route_experts", *arguments, **options)
        expected, expected_factors = reference_route_experts(*arguments, **options)
        np.testing.assert_array_equal(experts, expected)
        np.testing.assert_allclose(factors, expected_factors, rtol=1e-5)


def test_rows_without_a_number_still_choose_experts() -> None:
    logits = logits_of(3, 8)
    logits[1, 2], logits[2] = np.nan, -np.inf
    for isa, num_threads in settings():
        with running(isa, num_threads):
            experts, _ = ops.route_experts(logits, None, 3, normalize=True)
        assert experts[1:].tolist() == [[0, 1, 2], [0, 1, 2]]


def test_routing_has_the_same_bits_everywhere() -> None:
    logits = logits_of(130, 64)
    logits[:, 5] = logits[:, 40]
    expected = [ops.route_experts(row[None], None, 6, normalize=True) for row in logits]
    for isa, num_threads in settings():
        with running(isa, num_threads):
            experts, factors = ops.route_experts(logits, None, 6, normalize=True)
        assert_same_bits(experts, np.concatenate([row for row, _ in expected]))
        assert_same_bits(factors, np.concatenate([row for _, row in expected]))


def mlp_case(gate_up: str, down: str, rows: int, hidden: int = HIDDEN, ffn: int = FFN) -> tuple:
    """Arguments of expert_mlp, the residual last."""
    generator = np.random.default_rng(rows)
    experts, factors = ops.route_experts(logits_of(rows, EXPERTS), None, CHOSEN, normalize=True)
    return (
        generator.normal(0, 1, (rows, hidden)).astype(np.float32),
        experts,
        factors,
        ops.quantize_weight(matrix(EXPERTS * 2 * ffn, hidden), WeightFormat.parse(gate_up)),
        ops.quantize_weight(matrix(EXPERTS * hidden, ffn), WeightFormat.parse(down)),
        generator.normal(0, 1, (rows, hidden)).astype(np.float32),
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_mlp_matches_the_definition(backend: str, name: str) -> None:
    *arguments, residual = mlp_case(name, name, 11)
    result = call(backend, "experts", "expert_mlp", *arguments, residual=residual)
    expected = reference_expert_mlp(*arguments, residual=residual)
    # Where activations are rounded to 8 bits a last bit may turn a code.
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=3e-3)
    without = call(backend, "experts", "expert_mlp", *arguments)
    np.testing.assert_allclose(without, expected - residual, rtol=1e-4, atol=3e-3)


@pytest.mark.parametrize("rows", [0, 1, 600])
@pytest.mark.parametrize(
    ("gate_up", "down"), [("wint4", "wint8"), ("bfloat16", "wint4_a16"), ("none", "none")]
)
def test_mlp_has_the_same_bits_for_any_rows_threads_and_isa(
    gate_up: str, down: str, rows: int
) -> None:
    *arguments, residual = mlp_case(gate_up, down, rows, hidden=64, ffn=72)
    x, experts, factors, *weights = arguments
    expected = [
        ops.expert_mlp(
            *(part[row : row + 1] for part in (x, experts, factors)),
            *weights,
            residual=residual[row : row + 1],
        )
        for row in range(0, rows, 7)
    ]
    for isa, num_threads in settings():
        with running(isa, num_threads):
            result = ops.expert_mlp(*arguments, residual=residual)
        assert result.shape == (rows, 64)
        if rows:
            assert_same_bits(result[::7], np.concatenate(expected))


def test_a_row_without_a_number_spoils_no_other() -> None:
    *arguments, _ = mlp_case("wint4", "wint8", 9)
    expected = ops.expert_mlp(*arguments)
    arguments[0][4, 7] = np.nan
    result = ops.expert_mlp(*arguments)
    assert np.isnan(result[4]).all()
    others = np.arange(9) != 4
    assert_same_bits(result[others], expected[others])


def changed(arguments: list, index: int, value: object) -> list:
    return [value if i == index else argument for i, argument in enumerate(arguments)]


def test_messages_name_the_argument() -> None:
    logits = logits_of(2, 4)
    with pytest.raises(ValueError, match=r"num_chosen: must be in 1 \.\. 4, got 5"):
        ops.route_experts(logits, None, 5, normalize=True)
    with pytest.raises(ValueError, match=r"bias: expected shape \[4\]"):
        ops.route_experts(logits, np.zeros(3, np.float32), 2, normalize=True)
    with pytest.raises(ValueError, match=r"logits: expected 1 \.\. 512 experts, got 513"):
        ops.route_experts(logits_of(1, 513), None, 2, normalize=True)
    *arguments, _ = mlp_case("none", "none", 2)
    experts = arguments[1]
    for value, message in (
        (np.full_like(experts, 7), r"experts: 7 at row 0 is outside 0 \.\. 6"),
        (np.full_like(experts, 3), "experts: 3 stands twice at row 0"),
        (experts[:1], "experts: expected shape"),
        (experts.astype(np.int64), "experts: expected dtype int32"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            ops.expert_mlp(*changed(arguments, 1, value))
    small = ops.quantize_weight(matrix(EXPERTS * FFN, HIDDEN), WeightFormat.parse("none"))
    with pytest.raises(ValueError, match="gate_up: has 280 outputs"):
        ops.expert_mlp(*changed(arguments, 3, small))
