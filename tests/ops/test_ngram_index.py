# SPDX-License-Identifier: Apache-2.0
"""NgramIndex drafts what ngram_match does, however its sequence came in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdspec.ops import NgramIndex
from fdspec.ops.ngram_match import reference_ngram_match


def reference(tokens: list[int], limit: int, *, max_ngram: int, min_ngram: int) -> list[int]:
    draft, _ = reference_ngram_match(
        np.array(tokens, np.int32),
        np.array([0, len(tokens)]),
        np.array([limit], np.int32),
        max_ngram=max_ngram,
        min_ngram=min_ngram,
    )
    return list(draft.tolist())


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.lists(st.integers(1, 9), max_size=20),
    st.integers(0, 9),
    st.integers(1, 3),
    st.integers(0, 4),
)
def test_equals_the_definition_at_every_length(
    tokens: list[int], pieces: list[int], limit: int, min_ngram: int, extra: int
) -> None:
    sizes = {"max_ngram": min_ngram + extra, "min_ngram": min_ngram}
    index = NgramIndex(**sizes)
    ends = np.cumsum(pieces).tolist()
    for end in [e for e in ends if e < len(tokens)] + [len(tokens)]:
        index.follow(np.array(tokens[:end], np.int32))
        assert index.draft(limit).tolist() == reference(tokens[:end], limit, **sizes)
        assert index.length == end
        index.check()


def test_long_texts_with_many_tokens() -> None:
    source = np.random.default_rng(0)
    words = source.integers(0, 50_000, 300)
    text = np.concatenate([words[source.integers(0, 290) :][:10] for _ in range(300)])
    text = text.astype(np.int32)
    index = NgramIndex(max_ngram=5, min_ngram=2)
    for end in range(100, len(text), 97):
        index.follow(text[:end])
        expected = reference(text[:end].tolist(), 6, max_ngram=5, min_ngram=2)
        assert index.draft(6).tolist() == expected
    index.check()


def test_another_sequence_starts_anew() -> None:
    index = NgramIndex(max_ngram=3, min_ngram=1)
    index.follow(np.array([1, 2, 3, 1, 2], np.int32))
    assert index.draft(2).tolist() == [3, 1]
    for other in ([7, 8, 9, 7], [4, 2, 5, 6, 4]):
        index.follow(np.array(other, np.int32))
        assert index.draft(1).tolist() == [other[1]]
    assert index.draft(0).tolist() == index.draft(-3).tolist() == []


def test_memory_is_proportional_to_the_text() -> None:
    index = NgramIndex(max_ngram=5, min_ngram=2)
    text = np.random.default_rng(0).integers(0, 40_000, 20_000).astype(np.int32)
    index.follow(text)
    assert index.num_bytes < 20_000 * 4 * 25


def test_errors_name_the_argument() -> None:
    for sizes in ((3, 0), (1, 2)):
        with pytest.raises(ValueError, match="^min_ngram, max_ngram"):
            NgramIndex(max_ngram=sizes[0], min_ngram=sizes[1])
    with pytest.raises(TypeError, match="^tokens"):
        NgramIndex(max_ngram=3, min_ngram=1).follow(np.array([1, 2]))
