# SPDX-License-Identifier: Apache-2.0
"""Maxima of blocks of logits: a step program gives them, and they change no token."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fdspec.ops import RowParams, WeightFormat, quantize_weight, sample_rows
from fdspec.ops.sample_rows import reference_block_maxima
from tests.ops.support import assert_same_bits, running, settings
from tests.ops.test_sample_rows import MODES, VOCABULARIES, logits_of, with_history
from tests.ops.test_step_program import DIM, inputs, make, values

ROWS = 40


def rough_rows(vocab: int) -> Any:
    """Rows as models have them (a few tokens far above the others), flat ones, and broken ones."""
    logits = logits_of(ROWS, vocab)
    generator = np.random.default_rng(vocab)
    for row in range(0, ROWS, 2):
        likely = generator.integers(0, vocab, 5)
        logits[row, likely] += generator.uniform(5, 30, 5).astype(np.float32)
    logits[5] = 2.0
    logits[7] = -np.inf
    logits[9] = np.nan
    logits[11, ::3] = np.nan
    logits[13, vocab // 2] = np.inf
    logits[15] *= 1e-30
    logits[17] *= 1e30
    return logits


@pytest.mark.parametrize("vocab", [*VOCABULARIES, 129, 5000])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
def test_change_no_token(mode: dict[str, Any], vocab: int) -> None:
    logits = rough_rows(vocab)
    maxima = reference_block_maxima(logits)
    plain = RowParams.alike(ROWS, **mode, seed=np.arange(ROWS), position=3)
    history = with_history(plain, vocab)
    # Biases that lift tokens of low blocks above all others, and penalties that reward.
    lifted = dataclasses.replace(
        history,
        mask=None,
        bias_values=history.bias_values * np.float32(20),
        repetition_penalty=np.full(ROWS, 0.01, np.float32),
    )
    for params in (plain, history, dataclasses.replace(history, mask=None), lifted):
        for isa, num_threads in settings():
            with running(isa, num_threads):
                assert_same_bits(sample_rows(logits, params, maxima), sample_rows(logits, params))


@pytest.mark.parametrize("weight_format", ["wint8", "wint4", "none"])
@pytest.mark.parametrize(("isa", "num_threads"), settings())
def test_a_step_program_gives_them_beside_the_same_logits(
    isa: str, num_threads: int, weight_format: str
) -> None:
    for vocab in (5, 63, 700, 2081):
        program = make(quantize_weight(values(vocab, DIM), WeightFormat.parse(weight_format)))
        for num_selected in (1, 5, 70, 300):
            rows = min(num_selected, 20)
            selected = np.arange(num_selected, dtype=np.int64) % rows
            alone, beside = np.zeros((2, num_selected, vocab), dtype=np.float32)
            maxima = np.zeros((num_selected, -(-vocab // 64)), dtype=np.float32)
            with running(isa, num_threads):
                program.run(**inputs(rows, selected_rows=selected, out=alone))
                program.run(**inputs(rows, selected_rows=selected, out=beside), block_maxima=maxima)
            assert_same_bits(beside, alone)
            assert_same_bits(maxima, reference_block_maxima(alone))


def test_of_rows_that_are_not_numbers() -> None:
    matrix = values(200, DIM)
    matrix[70:140] = np.nan
    program = make(quantize_weight(matrix, WeightFormat.parse("none")))
    out, maxima = np.zeros((2, 200), np.float32), np.zeros((2, 4), np.float32)
    program.run(**inputs(out=out), block_maxima=maxima)
    assert np.isnan(out[:, 70:140]).all() and not np.isnan(out[:, :70]).any()
    assert_same_bits(maxima, reference_block_maxima(out))


def test_refuses_other_shapes() -> None:
    logits = logits_of(2, 130)
    with pytest.raises(ValueError, match=r"block_maxima: expected shape"):
        sample_rows(logits, RowParams.alike(2), np.zeros((2, 2), np.float32))
    with pytest.raises(TypeError, match=r"block_maxima: "):
        sample_rows(logits, RowParams.alike(2), np.zeros((2, 3), np.float64))
    with pytest.raises(ValueError, match=r"block_maxima: expected shape"):
        make().run(**inputs(), block_maxima=np.zeros((2, 2), np.float32))
