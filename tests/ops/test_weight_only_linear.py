# SPDX-License-Identifier: Apache-2.0
"""weight_only_linear: definition in every format, equal bits everywhere, messages."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fdspec import ops
from fdspec.ops import PackedWeight, WeightFormat
from fdspec.ops.weight_only_linear import reference_weight_only_linear
from tests.ops.support import BACKENDS, assert_same_bits, call, running, settings
from tests.ops.weight_cases import FORMATS, SIZES, packed

NAME = "weight_only_linear"
MAX_ROWS = 64


def rows_for(weight: PackedWeight, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, bias and residual; values of very different size, as activations have them."""
    generator = np.random.default_rng(rows)
    x = generator.normal(size=(rows, weight.in_features))
    x *= np.exp(generator.normal(0, 1.5, x.shape))
    bias = generator.normal(size=weight.out_features)
    residual = generator.normal(size=(rows, weight.out_features))
    return x.astype(np.float32), bias.astype(np.float32), residual.astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend: str) -> None:
    """Codes and activations that 8 bits hold exactly, so that the result is exact."""
    codes = np.array([[1, -2, 3], [7, 0, -8]], np.int8)
    scales = np.array([[0.5], [2]], np.float32)
    weight = ops.pack_weight(codes, scales, None, WeightFormat(4))
    x = np.array([[127, 0, -1], [0, 0, 0]], np.float32)
    bias = np.array([0.25, 0], np.float32)
    residual = np.array([[1, 1], [2, 2]], np.float32)
    result = call(backend, NAME, NAME, x, weight, bias=bias, residual=residual)
    np.testing.assert_array_equal(result, [[63.25, 1795], [2.25, 2]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_minimum_by_hand(backend: str) -> None:
    codes, half = np.array([[0, 15, 4]], np.uint8), np.array([[0.5]], np.float32)
    weight = ops.pack_weight(codes, half, -2 * half, WeightFormat(4, 0, has_minimum=True))
    x = np.array([[127, 1, 2]], np.float32)
    result = call(backend, NAME, NAME, x, weight)
    np.testing.assert_array_equal(result, [[-127 + 6.5 + 2]])


@pytest.mark.parametrize(("in_features", "out_features"), SIZES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_matches_the_definition(
    backend: str, name: str, in_features: int, out_features: int
) -> None:
    weight = packed(name, out_features, in_features)
    x, bias, residual = rows_for(weight, 3)
    expected = reference_weight_only_linear(x, weight, bias=bias, residual=residual)
    result = call(backend, NAME, NAME, x, weight, bias=bias, residual=residual)
    largest = np.abs(x).max() * np.abs(ops.dequantize_weight(weight)).sum(axis=1).max() + 1
    np.testing.assert_allclose(result, expected, rtol=0, atol=3e-7 * largest)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("in_features", "out_features"), [(160, 72), (1, 3), (33, 16)])
def test_same_bits_for_any_rows_threads_and_isa(
    name: str, in_features: int, out_features: int
) -> None:
    """Every number of rows up to 64, at every level and with any number of threads."""
    weight = packed(name, out_features, in_features)
    x, bias, residual = rows_for(weight, MAX_ROWS)
    with running("portable", 1):
        expected = np.concatenate(
            [
                ops.weight_only_linear(
                    x[i : i + 1], weight, bias=bias, residual=residual[i : i + 1]
                )
                for i in range(MAX_ROWS)
            ]
        )
    for isa, num_threads in settings():
        counts = (1, 7, MAX_ROWS) if isa == "portable" else range(1, MAX_ROWS + 1)
        with running(isa, num_threads):
            for rows in counts:
                result = ops.weight_only_linear(
                    x[:rows], weight, bias=bias, residual=residual[:rows]
                )
                assert_same_bits(result, expected[:rows])


@pytest.mark.parametrize("name", ["wint4", "wint8", "wint4_a16", "bfloat16"])
@pytest.mark.parametrize("in_features", [1536, 4128])
def test_same_bits_for_large_products(name: str, in_features: int) -> None:
    """More rows than fit the second-level cache, more inputs than are taken apart together, and
    enough work for every thread.
    """
    weight = packed(name, 208, in_features)
    x, _, _ = rows_for(weight, 300)
    with running("avx2" if "avx2" in ops.supported_isas() else "portable", 1):
        expected = np.concatenate([ops.weight_only_linear(part, weight) for part in x[:, None]])
    for isa, num_threads in settings():
        if isa != "portable":
            with running(isa, num_threads):
                assert_same_bits(ops.weight_only_linear(x, weight), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_do_not_touch_each_other(name: str) -> None:
    weight = packed(name, 40, 100)
    x, _, _ = rows_for(weight, 9)
    expected = ops.weight_only_linear(x, weight)
    x[4] = [np.nan, *[np.inf] * 49, *[1e38] * 50]
    for isa, num_threads in settings():
        with running(isa, num_threads):
            result = ops.weight_only_linear(x, weight)
        assert not np.isfinite(result[4]).any()
        others = np.arange(9) != 4
        assert_same_bits(result[others], expected[others])


@pytest.mark.parametrize("value", [0.0, 1e-41, 1e-36, 3e-31, 1e30])
@pytest.mark.parametrize("name", ["none", "wint8_g32", "wint4", "wint4_a16"])
def test_blocks_of_any_magnitude(name: str, value: float) -> None:
    """A block of tiny or zero activations gives neither NaN nor another ISA's bits."""
    weight = packed(name, 16, 96)
    x, _, _ = rows_for(weight, 2)
    x[:, 32:64] = value
    with running("portable", 1):
        expected = ops.weight_only_linear(x, weight)
    assert np.isfinite(expected).all()
    for isa, num_threads in settings():
        with running(isa, num_threads):
            assert_same_bits(ops.weight_only_linear(x, weight), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2e30])
@pytest.mark.parametrize("name", ["wint8_g32", "wint4"])
def test_refused_magnitudes_give_nan_everywhere(name: str, value: float) -> None:
    weight = packed(name, 16, 96)
    x, _, _ = rows_for(weight, 2)
    x[0, 40] = value
    for isa, num_threads in settings():
        with running(isa, num_threads):
            result = ops.weight_only_linear(x, weight)
        assert np.isnan(result[0]).all()
        assert np.isfinite(result[1]).all()


@pytest.mark.parametrize("name", FORMATS)
def test_largest_codes_do_not_overflow(name: str) -> None:
    """All weights and activations at the ends of their ranges, -128 among them."""
    weight_format = WeightFormat.parse(name)
    if not weight_format.is_integer:
        return
    lowest, highest = weight_format.code_range
    codes = np.full((16, 64), lowest, np.int16)
    codes[1::2] = highest
    groups = ops.quantize_weight(codes.astype(np.float32), weight_format).layout.num_groups
    ones = np.ones((16, groups), np.float32)
    weight = ops.pack_weight(
        codes, ones, ones if weight_format.has_minimum else None, weight_format
    )
    x = np.full((2, 64), 127, np.float32)
    x[1] = -127
    row = 64 * 127 * (codes[:, 0].astype(np.int64) + weight_format.has_minimum)
    for isa, num_threads in settings():
        with running(isa, num_threads):
            np.testing.assert_array_equal(ops.weight_only_linear(x, weight), [row, -row])


@pytest.mark.parametrize("name", ["none", "wint4", "wint8_a16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_batch_and_empty_sums(backend: str, name: str) -> None:
    weight = packed(name, 20, 40)
    result = call(backend, NAME, NAME, np.zeros((0, 40), np.float32), weight)
    assert result.shape == (0, 20)
    nothing = ops.quantize_weight(np.zeros((20, 0), np.float32), weight.format)
    result = call(backend, NAME, NAME, np.zeros((2, 0), np.float32), nothing)
    np.testing.assert_array_equal(result, np.zeros((2, 20)))


def test_float_activations_multiply_the_dequantized_weight() -> None:
    """The a16 formats give the bits of a float32 weight with the same values."""
    weight = packed("wint4_g64_min_a16", 40, 160)
    exact = ops.quantize_weight(ops.dequantize_weight(weight), WeightFormat.parse("none"))
    x, bias, _ = rows_for(weight, 5)
    assert_same_bits(
        ops.weight_only_linear(x, weight, bias=bias), ops.weight_only_linear(x, exact, bias=bias)
    )


def test_joined_matrices_give_the_same_bits() -> None:
    parts = [packed("wint4", size, 100, size) for size in (48, 16, 32)]
    x, _, _ = rows_for(parts[0], 6)
    separate = np.concatenate([ops.weight_only_linear(x, part) for part in parts], axis=1)
    assert_same_bits(ops.weight_only_linear(x, ops.concat_weights(parts)), separate)


def test_arguments_do_not_change() -> None:
    weight = packed("wint4", 40, 100)
    x, bias, residual = rows_for(weight, 6)
    copies = [array.copy() for array in (x, bias, residual, weight.data)]
    ops.weight_only_linear(x, weight, bias=bias, residual=residual)
    for array, before in zip((x, bias, residual, weight.data), copies, strict=True):
        assert_same_bits(array, before)


WEIGHT = packed("wint8", 5, 8)
X = np.ones((2, 8), np.float32)


@pytest.mark.parametrize(
    ("x", "weight", "options", "error", "message"),
    [
        (X[:, :7].copy(), WEIGHT, {}, ValueError, r"x: expected shape \[any, 8\]"),
        (X.astype(np.float64), WEIGHT, {}, TypeError, "x: unsupported dtype float64"),
        (X, WEIGHT, {"bias": X[0]}, ValueError, r"bias: expected shape \[5\]"),
        (X, WEIGHT, {"residual": X}, ValueError, r"residual: expected shape \[2, 5\]"),
        (
            X,
            dataclasses.replace(WEIGHT, data=WEIGHT.data[:-1]),
            {},
            ValueError,
            "weight.data: expected shape",
        ),
        (
            X,
            dataclasses.replace(WEIGHT, data=WEIGHT.data.view(np.int8)),
            {},
            TypeError,
            "weight.data: expected dtype uint8",
        ),
    ],
)
def test_messages_name_the_argument(x, weight, options, error, message) -> None:
    with pytest.raises(error, match=message):
        ops.weight_only_linear(x, weight, **options)
