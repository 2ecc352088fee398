# SPDX-License-Identifier: Apache-2.0
"""tokenizer.model gives the ids and texts of the sentencepiece library."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from fdspec.core.errors import CheckpointError
from fdspec.tokenizer import load_token_table, load_tokenizer
from fdspec.tokenizer.sentencepiece_model import read_sentencepiece_model
from tests.tokenizer.corpus import TEXTS

# NUL ends a sentence for the trainer; markers and special tokens are found in texts here.
TRAINING = [
    text for text in TEXTS if "\x00" not in text and "\u2581" not in text and "<|" not in text
]
# As ERNIE's: every space counts, and no character is changed.
PLAIN: dict[str, Any] = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "bpe_plain": {"model_type": "bpe", **PLAIN},
    "bpe": {"model_type": "bpe"},
    "unigram_plain": {"model_type": "unigram", **PLAIN},
    "unigram": {"model_type": "unigram", "add_dummy_prefix": True},
}


def train(folder: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """A small model in the folder, with the library that reads it."""
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING * 3),
        model_writer=writer,
        **{
            "vocab_size": 700,
            "byte_fallback": True,
            "control_symbols": ["<|im_start|>", "<|im_end|>"],
            "hard_vocab_limit": False,
            "minloglevel": 2,
            "num_threads": 1,
            **options,
        },
    )
    (folder / "tokenizer.model").write_bytes(writer.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=writer.getvalue())


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_are_those_of_the_library(tmp_path, kind):
    library = train(tmp_path, **KINDS[kind])
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == library.vocab_size()
    for text in TRAINING:
        ids = library.encode(text)
        mine = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == library.decode(ids) == library.decode(mine)
        if "unigram" in kind:
            # Often several ways to cut a text are equally likely, and libraries differ in which.
            likelihoods = [sum(map(library.get_score, tokens)) for tokens in (mine, ids)]
            assert likelihoods[0] == pytest.approx(likelihoods[1], rel=1e-5), text
        else:
            assert mine == ids, text


def test_special_tokens_templates_and_the_engine(tmp_path):
    library = train(tmp_path, **KINDS["bpe_plain"])
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos_token": True,
        "chat_template": "<|im_start|>{{ messages[0].content }}<|im_end|>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    start, end = (library.piece_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hello world"}])
    expected = [start, *library.encode("Hello world"), end]
    assert tokenizer.encode(text, add_special_tokens=False) == expected
    assert tokenizer.encode("x") == [library.bos_id(), *library.encode("x")]
    assert tokenizer.eos_ids == (library.eos_id(),)
    table = load_token_table(tmp_path)
    ids = library.encode("naïve 😀 世界")
    assert b"".join(table.token_bytes[token] for token in ids).decode() == "naïve 😀 世界"
    assert table.token_bytes[start] == b""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "char"}, "of kind 'character' is not supported"),
        ({"treat_whitespace_as_suffix": True}, "not marked at the start of words"),
    ],
)
def test_kinds_that_cannot_be_rebuilt(tmp_path, options, message):
    train(tmp_path, **{"byte_fallback": False, **options})
    with pytest.raises(CheckpointError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path / "tokenizer.model") in str(caught.value)


def test_damaged_files_are_named(tmp_path):
    train(tmp_path, model_type="bpe")
    file = tmp_path / "tokenizer.model"
    data = file.read_bytes()
    for damaged in (data[:-3], b"", b"\x0a\xff\xff\xff\xff", b"\x0b", b"\xff" * 20, b"\x08\x01"):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="not a SentencePiece model") as caught:
            read_sentencepiece_model(file)
        assert str(file) in str(caught.value)
