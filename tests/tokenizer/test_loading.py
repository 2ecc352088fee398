# SPDX-License-Identifier: Apache-2.0
"""Where tokenizers are found, and what the errors say when they are not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fdspec.core.errors import CheckpointError, InvalidParameter
from fdspec.tokenizer import load_tokenizer
from tests.tokenizer import builders


def test_eos_ids_of_the_generation_config(tmp_path):
    folder = builders.save_folder(tmp_path, builders.byte_level())
    (folder / "config.json").write_text('{"eos_token_id": 9}')
    assert load_tokenizer(folder).eos_ids == (9, 1)
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 1, 2]}')
    assert load_tokenizer(folder).eos_ids == (3, 1, 2)


def test_eos_and_eot_of_a_gguf(tmp_path):
    file = builders.save_gguf(
        tmp_path / "m.gguf", builders.byte_level(), "gpt2", "gpt-2", eot_token_id=3
    )
    assert load_tokenizer(file).eos_ids == (1, 3)
    assert load_tokenizer(tmp_path).eos_ids == (1, 3)


def test_add_bos_of_a_gguf(tmp_path):
    file = builders.save_gguf(
        tmp_path / "m.gguf", builders.byte_level(), "gpt2", "gpt-2", add_bos_token=True
    )
    tokenizer = load_tokenizer(file)
    assert tokenizer.encode("a")[0] == tokenizer.bos_id
    assert tokenizer.encode("a", add_special_tokens=False)[0] != tokenizer.bos_id


def test_training_leftovers_are_ignored(tmp_path):
    backend = builders.byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=64)
    tokenizer = load_tokenizer(builders.save_folder(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("The quick brown fox")) == "The quick brown fox"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no tokenizer.json, no tokenizer.model and no .gguf"),
        ({"tokenizer.model": b"x"}, "not a SentencePiece model"),
        ({"a.gguf": b"x", "b.gguf": b"x"}, "a.gguf, b.gguf"),
        ({"a.gguf": b"not it"}, "not a GGUF file"),
        ({"a.gguf": b"GGUF\x03\0\0\0"}, "damaged"),
        ({"a.gguf": b"GGUF\x07\0\0\0" + bytes(64)}, "version 7"),
        ({"tokenizer.json": b"{}"}, "tokenizer.json"),
    ],
)
def test_errors_name_the_file_and_the_remedy(tmp_path, files, message):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_broken_configuration_names_line_and_column(tmp_path):
    folder = builders.save_folder(tmp_path, builders.byte_level())
    (folder / "tokenizer_config.json").write_text('{"bos_token":\n oops}')
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json:2:2"):
        load_tokenizer(folder)


def test_missing_path(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        load_tokenizer(tmp_path / "nowhere")


def test_unknown_pre_tokenizer_lists_the_known_ones(tmp_path):
    file = builders.save_gguf(tmp_path / "m.gguf", builders.byte_level(), "gpt2", "smolm")
    with pytest.raises(CheckpointError, match=r"'smolm'.*did you mean 'smollm'.*known: .*qwen2"):
        load_tokenizer(file)


def test_unknown_vocabulary_kind(tmp_path):
    file = builders.save_gguf(tmp_path / "m.gguf", builders.byte_level(), "rwkv", "gpt-2")
    with pytest.raises(CheckpointError, match="'rwkv' is not supported; supported: gpt2, llama"):
        load_tokenizer(file)


def test_unsupported_decoder(tmp_path):
    folder = builders.save_folder(tmp_path, builders.byte_level())
    state = json.loads((folder / "tokenizer.json").read_text())
    state["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (folder / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="WordPiece is not supported"):
        load_tokenizer(folder)


def test_lone_surrogates_are_refused(tmp_path):
    tokenizer = load_tokenizer(builders.save_folder(tmp_path, builders.byte_level()))
    with pytest.raises(InvalidParameter, match="surrogate"):
        tokenizer.encode("a\ud800b")


def test_no_paddle_is_imported():
    code = (
        "import sys, fdspec.tokenizer; sys.exit('paddle' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
