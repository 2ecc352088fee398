# SPDX-License-Identifier: Apache-2.0
"""Each layer against its definition, with numpy arrays and with Paddle tensors."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import torch

from fdspec.layers.buffers import as_tensor, split_columns
from fdspec.layers.embedding import Embedding
from fdspec.layers.linear import Linear
from fdspec.layers.mlp import SwiGLU
from fdspec.layers.norm import RMSNorm
from fdspec.layers.rotary import Rotary
from fdspec.ops import PackedWeight, WeightFormat, quantize_weight


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def packed(weight: np.ndarray) -> PackedWeight:
    return quantize_weight(weight, WeightFormat.parse("none"))


@pytest.fixture(params=["numpy", "paddle"])
def kind(request):
    """Turns an array into the kind, and a result back into numpy."""
    if request.param == "numpy":
        return (lambda array: array), np.asarray
    return paddle.to_tensor, lambda tensor: tensor.numpy()


def test_linear(kind):
    to_kind, to_numpy = kind
    weight, bias, x, residual = values(48, 32), values(48), values(3, 32), values(3, 48)
    layer = Linear(packed(weight), bias)
    expected = x @ weight.T + bias
    np.testing.assert_allclose(to_numpy(layer(to_kind(x))), expected, rtol=1e-4, atol=1e-4)
    result = to_numpy(layer(to_kind(x), to_kind(residual)))
    np.testing.assert_allclose(result, expected + residual, rtol=1e-4, atol=1e-4)
    assert set(layer.state_dict()) == {"weight", "bias"}
    assert set(Linear(packed(weight)).state_dict()) == {"weight"}


def test_embedding(kind):
    to_kind, to_numpy = kind
    weight = values(10, 32)
    ids = np.array([3, 0, 9, 3], dtype=np.int32)
    np.testing.assert_array_equal(to_numpy(Embedding(packed(weight))(to_kind(ids))), weight[ids])


def test_rms_norm(kind):
    to_kind, to_numpy = kind
    weight, x = values(32), values(4, 32)
    expected = torch.nn.functional.rms_norm(
        torch.from_numpy(x), (32,), torch.from_numpy(weight), 1e-5
    )
    result = to_numpy(RMSNorm(weight, 1e-5)(to_kind(x)))
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_swiglu_block(kind):
    to_kind, to_numpy = kind
    gate_up, down, x, residual = values(96, 32), values(32, 48), values(2, 32), values(2, 32)
    gate, up = np.split(x @ gate_up.T, 2, axis=1)
    expected = (gate / (1 + np.exp(-gate)) * up) @ down.T + residual
    block = SwiGLU(Linear(packed(gate_up)), Linear(packed(down)))
    result = to_numpy(block(to_kind(x), to_kind(residual)))
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)


def test_rotary_turns_halves_by_position_times_frequency(kind):
    to_kind, to_numpy = kind
    frequencies = np.array([1.0, 0.1, 0.01])
    rotary = Rotary(frequencies, scale=1.5, max_positions=4000)
    positions = np.array([0, 1, 3999], dtype=np.int32)
    query, key = values(3, 4, 6), values(3, 2, 6)
    for x, result in zip(
        (query, key), rotary(to_kind(query), to_kind(key), to_kind(positions)), strict=True
    ):
        numbers = x[..., :3] + 1j * x[..., 3:]
        turned = numbers * 1.5 * np.exp(1j * positions[:, None, None] * frequencies)
        expected = np.concatenate([turned.real, turned.imag], axis=-1)
        np.testing.assert_allclose(to_numpy(result), expected, rtol=1e-5, atol=1e-5)
    assert rotary.max_positions == 4000
    assert not rotary.state_dict()


def test_split_columns_is_contiguous(kind):
    to_kind, to_numpy = kind
    x = values(3, 10)
    pieces = split_columns(to_kind(x), (4, 1, 5))
    for piece, expected in zip(pieces, np.split(x, [4, 5], axis=1), strict=True):
        np.testing.assert_array_equal(to_numpy(piece), expected)
        assert (
            piece.is_contiguous()
            if isinstance(piece, paddle.Tensor)
            else (piece.flags.c_contiguous)
        )


def test_tensors_share_memory_with_arrays():
    array = values(2, 3)
    tensor = as_tensor(array)
    array[1, 2] = 7
    assert float(tensor[1, 2]) == 7
    assert as_tensor(np.zeros(2, dtype=np.uint16)).dtype == paddle.bfloat16
