# SPDX-License-Identifier: Apache-2.0
"""row_logprobs: equal to log-softmax, sorted, and the same bits everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fdspec.ops import row_logprobs
from fdspec.ops.row_logprobs import reference_row_logprobs
from tests.ops.support import BACKENDS, assert_same_bits, call, running, settings

INF = np.inf


def logprobs(backend: str, *arguments: Any) -> Any:
    return call(backend, "row_logprobs", "row_logprobs", *arguments)


@pytest.mark.parametrize(
    ("rows", "vocab", "num_top"),
    [(0, 5, 2), (1, 1, 1), (3, 17, 0), (4, 16, 16), (5, 1003, 20), (600, 33, 5), (2, 5000, 900)],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_matches_the_definition(backend: str, rows: int, vocab: int, num_top: int) -> None:
    generator = np.random.default_rng(vocab)
    # Rounded, so that there are ties.
    logits = generator.normal(0, 4, (rows, vocab)).round(1).astype(np.float32)
    token_ids = generator.integers(0, vocab, rows).astype(np.int32)
    result = logprobs(backend, logits, token_ids, num_top)
    expected = reference_row_logprobs(logits, token_ids, num_top)
    assert [array.dtype for array in result] == [np.float32, np.int32, np.int32, np.float32]
    for index in (0, 3):
        np.testing.assert_allclose(result[index], expected[index], rtol=0, atol=4e-6)
    for index in (1, 2):
        np.testing.assert_array_equal(result[index], expected[index])


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend: str) -> None:
    logits = np.log(np.array([[0.1, 0.4, 0.4, 0.1]])).astype(np.float32)
    logprob, rank, top_ids, top_logprobs = logprobs(backend, logits, np.array([2], np.int32), 4)
    np.testing.assert_allclose(logprob, [np.log(0.4)], rtol=1e-6)
    assert rank.tolist() == [2]
    assert top_ids.tolist() == [[1, 2, 0, 3]]
    np.testing.assert_allclose(top_logprobs, np.log([[0.4, 0.4, 0.1, 0.1]]), rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_impossible_tokens(backend: str) -> None:
    logits = np.array([[-INF, 1, np.nan, 1], [-INF, -INF, np.nan, -INF]], np.float32)
    ids = np.array([2, 3], np.int32)
    logprob, rank, top_ids, top_logprobs = logprobs(backend, logits, ids, 4)
    np.testing.assert_allclose(logprob, [-INF, -np.log(4)], rtol=1e-6)
    assert rank.tolist() == [4, 4]
    assert top_ids.tolist() == [[1, 3, 0, 2], [0, 1, 2, 3]]
    np.testing.assert_allclose(
        top_logprobs, [[-np.log(2), -np.log(2), -INF, -INF], [-np.log(4)] * 4], rtol=1e-6
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_certain_token_has_logprob_0(backend: str) -> None:
    logits = np.array([[0, 500, 0]], np.float32)
    assert logprobs(backend, logits, np.array([1], np.int32), 0)[0].tolist() == [0.0]
    assert logprobs(backend, logits, np.array([2], np.int32), 0)[0].tolist() == [-500.0]


def test_levels_threads_and_other_rows_change_no_bit() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (40, 2003)).astype(np.float32)
    token_ids = np.arange(40, dtype=np.int32)
    expected = row_logprobs(logits, token_ids, 7)
    for isa, num_threads in settings():
        with running(isa, num_threads):
            for actual, other in zip(row_logprobs(logits, token_ids, 7), expected, strict=True):
                assert_same_bits(actual, other)
    for row in range(40):
        alone = row_logprobs(logits[row : row + 1], token_ids[row : row + 1], 7)
        for actual, other in zip(alone, expected, strict=True):
            assert_same_bits(actual, other[row : row + 1])


def test_errors_name_the_argument() -> None:
    logits, ids = np.zeros((2, 5), np.float32), np.zeros(2, np.int32)
    with pytest.raises(TypeError, match="^logits"):
        row_logprobs(logits.astype(np.float64), ids, 1)
    with pytest.raises(ValueError, match="^token_ids: expected shape"):
        row_logprobs(logits, ids[:1], 1)
    for token in (-1, 5):
        with pytest.raises(ValueError, match=rf"^token_ids\[1\]: token {token} is outside"):
            row_logprobs(logits, np.array([0, token], np.int32), 1)
    for num_top in (-1, 6):
        with pytest.raises(ValueError, match="^num_top"):
            row_logprobs(logits, ids, num_top)
