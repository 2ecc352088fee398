# SPDX-License-Identifier: Apache-2.0
"""embedding: rows of the dequantised matrix in every format, messages."""

from __future__ import annotations

import numpy as np
import pytest

from fdspec import ops
from tests.ops.support import BACKENDS, assert_same_bits, call, running, settings
from tests.ops.weight_cases import FORMATS, packed


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gives_rows_of_the_matrix(backend: str, name: str) -> None:
    weight = packed(name, 37, 100)
    token_ids = np.array([36, 0, 5, 5, 16], np.int32)
    result = call(backend, "embedding", "embedding", token_ids, weight)
    assert_same_bits(result, ops.dequantize_weight(weight)[token_ids])


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows(backend: str) -> None:
    result = call(backend, "embedding", "embedding", np.zeros(0, np.int32), packed("wint4", 16, 48))
    assert result.shape == (0, 48)


def test_many_rows_with_any_threads() -> None:
    weight = packed("wint4", 100, 576)
    token_ids = np.random.default_rng(0).integers(0, 100, 700).astype(np.int32)
    expected = ops.dequantize_weight(weight)[token_ids]
    for isa, num_threads in settings():
        with running(isa, num_threads):
            assert_same_bits(ops.embedding(token_ids, weight), expected)


@pytest.mark.parametrize(
    ("token_ids", "error", "message"),
    [
        (np.array([0, 37], np.int32), ValueError, "token_ids: 37 at row 1 .* 0 .. 36"),
        (np.array([-1], np.int32), ValueError, "token_ids: -1 at row 0"),
        (np.array([1]), TypeError, "token_ids: expected dtype int32, got int64"),
        (np.array([[1]], np.int32), ValueError, "token_ids: expected shape"),
    ],
)
def test_messages_name_the_argument(token_ids, error, message) -> None:
    with pytest.raises(error, match=message):
        ops.embedding(token_ids, packed("wint8", 37, 20))
