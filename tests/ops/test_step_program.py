# SPDX-License-Identifier: Apache-2.0
"""StepProgram by itself: what it refuses, and a small program against the single ops.

Whole models are compared in tests/worker/test_step_program.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fdspec import ops
from fdspec.ops import StepProgram, Value, WeightFormat, quantize_weight
from fdspec.utils.int8_entries import SCALE_BYTES
from tests.ops.support import running, settings

VOCAB, DIM, HEADS, KV_HEADS, HEAD_DIM, BLOCKS, BLOCK_SIZE = 40, 32, 4, 2, 16, 4, 8
POSITIONS = 64


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def packed(*shape: int, seed: int = 0) -> ops.PackedWeight:
    return quantize_weight(values(*shape, seed=seed), WeightFormat.parse("wint8"))


EMBEDDING = packed(VOCAB, DIM)
QKV = packed((HEADS + 2 * KV_HEADS) * HEAD_DIM, DIM)
OUTPUT = packed(DIM, HEADS * HEAD_DIM)
NORM = values(DIM)
COS, SIN = values(POSITIONS, HEAD_DIM // 2), values(POSITIONS, HEAD_DIM // 2, seed=1)


def caches(dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    size = HEAD_DIM + SCALE_BYTES if dtype == "int8" else HEAD_DIM
    shape = (BLOCKS, KV_HEADS, BLOCK_SIZE, size)
    return np.zeros(shape, dtype), np.zeros(shape, dtype)


def attend(
    program: StepProgram, qkv: Value, num_heads: int = HEADS, dtype: str = "float32"
) -> Value:
    key_cache, value_cache = caches(dtype)
    return program.attention(
        qkv, key_cache, value_cache, cos=COS, sin=SIN, num_heads=num_heads, scale=0.25
    )


def make(output: ops.PackedWeight = EMBEDDING, dtype: str = "float32") -> StepProgram:
    program = StepProgram()
    hidden = program.embedding(EMBEDDING)
    qkv = program.linear(program.rms_norm(hidden, NORM, 1e-5), QKV)
    attended = attend(program, qkv, dtype=dtype)
    hidden = program.linear(attended, OUTPUT, residual=hidden)
    program.linear(program.select(hidden), output)
    program.finish()
    return program


def inputs(rows: int = 6, **changes: Any) -> dict[str, np.ndarray]:
    arguments = {
        "token_ids": np.arange(rows, dtype=np.int32),
        "positions": np.arange(rows, dtype=np.int32),
        "slots": np.arange(rows, dtype=np.int64) + BLOCK_SIZE,
        "block_table": np.array([[1, 2, 3]], dtype=np.int32),
        "row_splits": np.array([0, rows], dtype=np.int32),
        "context_lens": np.zeros(1, dtype=np.int32),
        "parents": np.arange(-1, rows - 1, dtype=np.int32),
        "selected_rows": np.array([rows - 1, 0], dtype=np.int64),
        "out": np.zeros((2, VOCAB), dtype=np.float32),
    }
    return {**arguments, **changes}


def by_single_ops(step: dict[str, np.ndarray], dtype: str) -> np.ndarray:
    hidden = ops.embedding(step["token_ids"], EMBEDDING)
    qkv = ops.weight_only_linear(ops.rms_norm(hidden, NORM, 1e-5), QKV)
    rows = len(qkv)
    heads = qkv.reshape(rows, HEADS + 2 * KV_HEADS, HEAD_DIM)
    query, key, value = (
        np.ascontiguousarray(part) for part in np.split(heads, [HEADS, HEADS + KV_HEADS], axis=1)
    )
    query, key = ops.rope(query, key, step["positions"], COS, SIN)
    key_cache, value_cache = caches(dtype)
    ops.append_paged_kv(key, value, key_cache, value_cache, step["slots"])
    attended = ops.cascade_append_attention(
        query,
        key_cache,
        value_cache,
        step["block_table"],
        step["row_splits"],
        step["context_lens"],
        step["parents"],
        0.25,
    )
    hidden = ops.weight_only_linear(attended, OUTPUT, residual=hidden)
    return ops.weight_only_linear(hidden[step["selected_rows"]], EMBEDDING)


@pytest.mark.parametrize("dtype", ["float32", "uint16", "int8"])
@pytest.mark.parametrize("rows", [1, 2, 6, 17])
def test_gives_what_the_single_ops_give(rows, dtype):
    step = inputs(rows)
    program = make(dtype=dtype)
    assert program.num_layers_appended == 0
    program.run(**step)
    np.testing.assert_array_equal(step["out"], by_single_ops(step, dtype))
    assert program.num_layers_appended == 1


@pytest.mark.parametrize("weight_format", ["wint8", "wint4", "none"])
@pytest.mark.parametrize(("isa", "num_threads"), settings())
def test_best_tokens_are_those_of_the_logits(isa, num_threads, weight_format):
    # Columns with equal logits far from each other: the lowest one counts.
    matrix = np.tile(values(700, DIM), (3, 1))[: 3 * 700 - 3]
    output = quantize_weight(matrix, WeightFormat.parse(weight_format))
    for num_selected in (1, 5, 70, 300):
        rows = min(num_selected, 20)
        selected = {"selected_rows": np.arange(num_selected, dtype=np.int64) % rows}
        logits = np.zeros((num_selected, len(matrix)), dtype=np.float32)
        best = np.zeros(num_selected, dtype=np.int32)
        program = make(output)
        with running(isa, num_threads):
            program.run(**inputs(rows, **selected, out=logits))
            program.run(**inputs(rows, **selected, out=best))
        np.testing.assert_array_equal(best, logits.argmax(axis=1))
        assert best.max() < 700


def test_best_tokens_of_rows_that_are_not_numbers():
    matrix = values(VOCAB, DIM)
    matrix[7] = np.nan
    step = inputs(out=np.zeros(2, dtype=np.int32))
    logits = np.zeros((2, VOCAB), dtype=np.float32)
    program = make(quantize_weight(matrix, WeightFormat.parse("none")))
    program.run(**step)
    program.run(**{**step, "out": logits})
    assert np.isnan(logits[:, 7]).all()
    np.testing.assert_array_equal(step["out"], np.nanargmax(logits, axis=1))
    program = make(quantize_weight(np.full_like(matrix, np.nan), WeightFormat.parse("none")))
    program.run(**step)
    np.testing.assert_array_equal(step["out"], [0, 0])


def test_no_selected_rows_and_no_rows_at_all():
    program = make()
    nothing: dict[str, Any] = {
        "selected_rows": np.empty(0, dtype=np.int64),
        "out": np.empty((0, VOCAB), dtype=np.float32),
    }
    program.run(**inputs(**nothing))
    assert program.num_layers_appended == 1
    program.run(**inputs(rows=0, **nothing))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": np.array([0, 1, 2, 3, 4, VOCAB], np.int32)}, "token_ids: 40 at row 5"),
        ({"positions": np.full(6, POSITIONS, np.int32)}, "positions: 64 at row 0"),
        ({"slots": np.full(6, BLOCKS * BLOCK_SIZE, np.int64)}, "slots: slot 32 is outside"),
        ({"slots": np.full(6, -1, np.int64)}, "slots: slot -1 is outside"),
        ({"selected_rows": np.array([6, 0], np.int64)}, "selected_rows: 6 at row 0"),
        ({"block_table": np.array([[9]], np.int32)}, "block_table: block 9 of sequence 0"),
        ({"parents": np.full(6, 6, np.int32)}, "parents: row 0"),
        ({"row_splits": np.array([0, 5], np.int32)}, "row_splits: must end with"),
        ({"out": np.zeros((2, VOCAB - 1), np.float32)}, "out: "),
        ({"positions": np.zeros(5, np.int32)}, "positions: "),
    ],
)
def test_refuses_rows_outside_its_memory(changes, message):
    with pytest.raises(ValueError, match=message):
        make().run(**inputs(**changes))


def test_refuses_programs_that_do_not_fit_together():
    program = StepProgram()
    hidden = program.embedding(EMBEDDING)
    norm = program.rms_norm(hidden, NORM, 1e-5)
    with pytest.raises(ValueError, match="x: 17 is no value"):
        program.swiglu(Value(17))
    with pytest.raises(ValueError, match="x: has 32 columns, the layer takes 64"):
        program.linear(hidden, OUTPUT)
    with pytest.raises(ValueError, match="x: the result of rms_norm and swiglu can only"):
        program.select(norm)
    with pytest.raises(ValueError, match="residual: has 32 columns"):
        program.linear(norm, QKV, residual=hidden)
    with pytest.raises(ValueError, match="qkv: has 32 columns"):
        attend(program, hidden)
    with pytest.raises(ValueError, match="no multiple"):
        attend(program, hidden, num_heads=3)
    with pytest.raises(ValueError, match="weight: "):
        program.rms_norm(hidden, values(DIM + 1), 1e-5)
    with pytest.raises(ValueError, match="program: must end with a linear layer"):
        program.finish()
    with pytest.raises(ValueError, match="program: finish"):
        program.run(**inputs())
    program.linear(program.select(hidden), EMBEDDING)
    with pytest.raises(ValueError, match="program: needs at least one attention"):
        program.finish()


def test_keeps_its_arrays_alive():
    program = make()
    # Memory of the caches would be reused here if nobody held them.
    noise = [np.full((BLOCKS, KV_HEADS, BLOCK_SIZE, HEAD_DIM), np.nan) for _ in range(8)]
    step = inputs()
    program.run(**step)
    assert np.isfinite(step["out"]).all()
    assert len(noise) == 8
