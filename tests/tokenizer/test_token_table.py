# SPDX-License-Identifier: Apache-2.0
"""What the engine knows of the tokens is what the tokenizer says, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdspec.core.errors import CheckpointError
from fdspec.tokenizer import load_token_table, load_tokenizer
from tests.tokenizer import builders


def assert_same(path: Path) -> None:
    table, tokenizer = load_token_table(path), load_tokenizer(path)
    assert table.vocab_size == tokenizer.vocab_size
    assert table.eos_ids == tokenizer.eos_ids
    assert table.token_bytes == tokenizer.token_bytes()


def save(file: Path, kind: str, **fields: object) -> Path:
    """A GGUF of a kind."""
    backend = builders.byte_level() if kind == "gpt2" else builders.sentencepiece_like()
    pre = "gpt-2" if kind == "gpt2" else None
    return builders.save_gguf(file, backend, kind, pre, **fields)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_of_a_gguf_file(tmp_path, kind):
    assert_same(save(tmp_path / "m.gguf", kind))
    assert_same(tmp_path)


def test_of_sentencepiece_without_a_first_space(tmp_path):
    assert_same(save(tmp_path / "m.gguf", "llama", add_space_prefix=False))


def test_of_several_ends(tmp_path):
    file = save(tmp_path / "m.gguf", "gpt2", eot_token_id=3)
    assert load_token_table(file).eos_ids == (1, 3)
    assert_same(file)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_of_tokens_that_users_added(tmp_path, kind):
    """A user's token is its own text: "\\u0120x" is no blank and an x then."""
    backend = builders.byte_level() if kind == "gpt2" else builders.sentencepiece_like()
    mark = "\u0120" if kind == "gpt2" else "\u2581"
    vocabulary = backend.get_vocab(with_added_tokens=True)
    entry = next(token for token in vocabulary if token.startswith(mark) and len(token) > 2)
    file = builders.save_gguf(
        tmp_path / "m.gguf", backend, kind, "gpt-2" if kind == "gpt2" else None
    )
    assert load_token_table(file).token_bytes[vocabulary[entry]].startswith(b" ")
    _change_type(file, vocabulary[entry], 4)
    assert load_token_table(file).token_bytes[vocabulary[entry]] == entry.encode("utf-8")
    assert_same(file)


def test_of_a_folder(tmp_path):
    assert_same(builders.save_folder(tmp_path, builders.byte_level()))


def test_of_the_real_model(smollm2_path):
    assert_same(smollm2_path)


def test_errors_are_those_of_the_tokenizer(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        load_token_table(tmp_path / "nothing")
    with pytest.raises(
        CheckpointError, match=r"no tokenizer.json, no tokenizer.model and no .gguf"
    ):
        load_token_table(tmp_path)
    file = builders.save_gguf(tmp_path / "m.gguf", builders.byte_level(), "gpt2", "gpt-2")
    file.write_bytes(file.read_bytes().replace(b"gpt2", b"rwkv"))
    with pytest.raises(CheckpointError, match="'rwkv' is not supported; supported: gpt2, llama"):
        load_token_table(file)


def _change_type(file: Path, token_id: int, kind: int) -> None:
    """Overwrite one entry of the array of int32 token types."""
    data = bytearray(file.read_bytes())
    key = b"tokenizer.ggml.token_type"
    # Key, type of the value, type of the items, number of items.
    first = data.index(key) + len(key) + 4 + 4 + 8
    start = first + 4 * token_id
    data[start : start + 4] = kind.to_bytes(4, "little")
    file.write_bytes(data)
