# SPDX-License-Identifier: Apache-2.0
"""Streamed text equals the whole text, and incomplete characters never show early."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdspec.tokenizer import Detokenizer, Tokenizer, load_tokenizer
from tests.tokenizer import builders
from tests.tokenizer.corpus import TEXTS

# One id for each byte: every way to break UTF-8 can be spelled.
ALL_BYTES = [bytes([byte]) for byte in range(256)]


def stream(token_bytes, pieces) -> tuple[list[str], str]:
    detokenizer = Detokenizer(token_bytes)
    return [detokenizer.push(piece) for piece in pieces], detokenizer.flush()


@given(st.lists(st.binary(max_size=6), max_size=12))
def test_any_division_of_any_bytes_gives_the_same_text(pieces):
    pushed, tail = stream(ALL_BYTES, pieces)
    assert "".join(pushed) + tail == b"".join(pieces).decode("utf-8", errors="replace")


@given(st.text(max_size=20), st.integers(0, 40))
def test_valid_text_never_shows_a_replacement_before_the_end(text, cut):
    data = text.encode("utf-8")[: cut or None]
    pushed, tail = stream(ALL_BYTES, [[byte] for byte in data])
    assert text.startswith("".join(pushed))
    assert tail in ("", "\ufffd")


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece_like"])
def test_every_prefix_of_the_corpus(tmp_path, kind):
    tokenizer = load_tokenizer(builders.save_folder(tmp_path, getattr(builders, kind)()))
    table = tokenizer.token_bytes()
    for text in TEXTS:
        ids = tokenizer.encode(text)
        for length in range(len(ids) + 1):
            pushed, tail = stream(table, [[token] for token in ids[:length]])
            whole = Detokenizer(table)
            assert "".join(pushed) + tail == whole.push(ids[:length]) + whole.flush()
            assert not "".join(pushed).endswith("\ufffd")


def test_text_that_continues_a_prompt_keeps_its_first_space(tmp_path):
    tokenizer = load_tokenizer(builders.save_folder(tmp_path, builders.sentencepiece_like()))
    ids = tokenizer.encode("lazy dog")
    assert tokenizer.decode(ids) == "lazy dog"
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.push(ids) + detokenizer.flush() == " lazy dog"


def test_bytes_of_smollm2(smollm2_path: Path):
    tokenizer: Tokenizer = load_tokenizer(smollm2_path)
    table = tokenizer.token_bytes()
    assert len(table) == tokenizer.vocab_size
    assert all(table[token] == b"" for token in tokenizer.special_ids)
    assert tokenizer.token_bytes(skip_special_tokens=False)[2] == b"<|im_end|>"
    printable = {bytes([byte]) for byte in range(0x20, 0x7F)}
    assert printable < {piece for piece in table if len(piece) == 1}
    assert tokenizer.decode([10**9, -1, 28]) == ","
