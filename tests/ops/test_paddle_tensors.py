# SPDX-License-Identifier: Apache-2.0
"""Ops take Paddle CPU tensors: same bits as numpy, outputs of the same kind, caches in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

from fdspec import ops
from fdspec.utils.int8_entries import to_int8_entries
from tests.ops.attention_steps import Shape, mixed_step
from tests.ops.support import BACKENDS, call


def tensor(array: Any) -> Any:
    """A Paddle copy; uint16 is bfloat16."""
    if array.dtype == np.uint16:
        return paddle.to_tensor(array.view(np.int16)).view("bfloat16")
    return paddle.to_tensor(array)


def bits(value: Any) -> Any:
    """numpy array of a tensor or array; bfloat16 as uint16."""
    if isinstance(value, np.ndarray):
        return value
    if value.dtype == paddle.bfloat16:
        return value.view("int16").numpy().view(np.uint16)
    return value.numpy()


def check(backend: str, module: str, name: str, *arguments: Any, **options: Any) -> None:
    """The op gives tensors for tensors, with the values that it gives for arrays."""
    tensors = [tensor(a) if isinstance(a, np.ndarray) else a for a in arguments]
    expected = call(backend, module, name, *arguments, **options)
    result = call(backend, module, name, *tensors, **options)
    expected = expected if isinstance(expected, tuple) else (expected,)
    result = result if isinstance(result, tuple) else (result,)
    for actual, other in zip(result, expected, strict=True):
        assert isinstance(actual, paddle.Tensor)
        np.testing.assert_array_equal(bits(actual), bits(other))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention(backend: str, dtype: str) -> None:
    name = "cascade_append_attention"
    check(backend, name, name, *mixed_step(Shape(dtype=dtype)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_caches_are_changed_in_place(dtype: str) -> None:
    generator = np.random.default_rng(0)
    key, value = (paddle.to_tensor(generator.normal(size=(2, 3, 8)), "float32") for _ in range(2))

    def stored(rows: paddle.Tensor) -> paddle.Tensor:
        return (
            paddle.to_tensor(to_int8_entries(rows.numpy()))
            if dtype == "int8"
            else rows.astype(dtype)
        )

    size = 12 if dtype == "int8" else 8
    key_cache, value_cache = (paddle.zeros([2, 3, 4, size], dtype) for _ in range(2))
    ops.append_paged_kv(key, value, key_cache, value_cache, paddle.to_tensor([1, 6]))
    assert bool((key_cache[1, :, 2] == stored(key[1])).all())
    assert bool((value_cache[0, :, 1] == stored(value[0])).all())
    ops.compact_kv(key_cache, value_cache, paddle.to_tensor([6]), paddle.to_tensor([0]))
    assert bool((key_cache[0, :, 0] == stored(key[1])).all())


@pytest.mark.parametrize("backend", BACKENDS)
def test_sampling(backend: str) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (3, 70)).astype(np.float32)
    params = ops.RowParams.alike(3, temperature=0.8, top_p=0.9, position=np.arange(3))
    check(backend, "sample_rows", "sample_rows", logits, params)
    check(backend, "sample_rows", "processed_probabilities", logits, params)
    check(backend, "row_logprobs", "row_logprobs", logits, np.array([1, 2, 3], np.int32), 4)


@pytest.mark.parametrize("backend", ["reference", "portable"])
def test_speculation(backend: str) -> None:
    tokens, splits = np.array([1, 2, 3, 1, 2], np.int32), np.array([0, 5])
    check(
        backend,
        "ngram_match",
        "ngram_match",
        tokens,
        splits,
        np.array([3], np.int32),
        max_ngram=3,
        min_ngram=1,
    )
    targets = np.array([1, 2, 7, 0, 0, 0], np.int32)
    check(backend, "verify", "verify_chain", tokens, targets, splits)
    parents = np.arange(-1, 4, dtype=np.int32)
    check(backend, "verify", "verify_tree", tokens, parents, targets, splits)


@pytest.mark.parametrize("backend", BACKENDS)
def test_merge(backend: str) -> None:
    output, lse = np.ones((2, 3, 8), np.float32), np.zeros((2, 3), np.float32)
    name = "merge_attention_states"
    check(backend, name, name, output, lse, 2 * output, lse + 1)
