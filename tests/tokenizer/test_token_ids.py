# SPDX-License-Identifier: Apache-2.0
"""Token ids and texts equal those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import decoders, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from fdspec.tokenizer import Tokenizer, load_tokenizer
from fdspec.tokenizer.gguf_vocabulary import PRE_TOKENIZERS
from tests.tokenizer import builders
from tests.tokenizer.corpus import TEXTS


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(smollm2_path)


@pytest.fixture(scope="module")
def smollm2_oracle(smollm2_path: Path):
    oracle = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    # The conversion in transformers does not read tokenizer.ggml.pre; this is the model's own.
    oracle._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    return oracle


def check_equal(tokenizer: Tokenizer, oracle: PreTrainedTokenizerFast) -> None:
    texts = [*TEXTS, *(f"a{token}b {token}" for token in oracle.all_special_tokens)]
    for text in texts:
        for add_special_tokens in (True, False):
            expected = oracle.encode(text, add_special_tokens=add_special_tokens)
            assert tokenizer.encode(text, add_special_tokens) == expected, text
        for skip in (True, False):
            decoded = oracle.decode(
                expected, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
            assert tokenizer.decode(expected, skip) == decoded, text


def test_smollm2_equals_transformers(smollm2, smollm2_oracle):
    check_equal(smollm2, smollm2_oracle)
    assert smollm2.special_ids == frozenset(range(17))
    for token_id in smollm2.special_ids:
        text = smollm2.id_to_token(token_id)
        assert smollm2.encode(f"x{text}y", add_special_tokens=False)[1] == token_id


def test_smollm2_splits_digits(smollm2):
    ids = smollm2.encode("in 1234", add_special_tokens=False)
    assert [smollm2.id_to_token(token) for token in ids] == ["in", "Ġ", "1", "2", "3", "4"]


def test_smollm2_round_trip(smollm2):
    for text in TEXTS:
        assert smollm2.decode(smollm2.encode(text), skip_special_tokens=False) == text
    assert smollm2.bos_id == 1
    assert smollm2.eos_ids == (2,)
    assert smollm2.vocab_size == 49152


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece_like"])
@pytest.mark.parametrize("bos", [False, True])
def test_folder_equals_transformers(tmp_path, kind, bos):
    backend = getattr(builders, kind)()
    folder = builders.save_folder(tmp_path, builders.add_bos(backend) if bos else backend)
    oracle = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    check_equal(tokenizer, oracle)
    assert tokenizer.bos_id == oracle.bos_token_id
    assert tokenizer.eos_ids == (oracle.eos_token_id,)


@pytest.mark.parametrize("add_bos_token", [True, False])
@pytest.mark.parametrize("bos", [True, False])
def test_tokenizer_json_decides_about_bos(tmp_path, bos, add_bos_token):
    backend = builders.byte_level()
    folder = builders.save_folder(
        tmp_path, builders.add_bos(backend) if bos else backend, add_bos_token=add_bos_token
    )
    check_equal(load_tokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder))


def test_special_tokens_of_the_configuration_are_registered(tmp_path):
    extra = {
        "additional_special_tokens": ["<|tool|>"],
        "pad_token": {"__type": "AddedToken", "content": "<pad>"},
    }
    folder = builders.save_folder(tmp_path, builders.byte_level(), **extra)
    tokenizer = load_tokenizer(folder)
    for token in ("<|tool|>", "<pad>"):
        ids = tokenizer.encode(f"a{token}b", add_special_tokens=False)
        assert ids[1] == tokenizer.token_to_id(token)
        assert tokenizer.decode(ids) == "ab"
        assert tokenizer.decode(ids, skip_special_tokens=False) == f"a{token}b"


@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_sentencepiece_gguf_equals_its_source(tmp_path, add_space_prefix):
    source = builders.sentencepiece_like()
    file = builders.save_gguf(
        tmp_path / "model.gguf",
        source,
        "llama",
        add_space_prefix=add_space_prefix,
        unk_token_id=source.token_to_id("<unk>"),
        add_bos_token=False,
    )
    tokenizer = load_tokenizer(file)
    if not add_space_prefix:
        source.normalizer = source.normalizer[1]
        source.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    for text in TEXTS:
        assert tokenizer.encode(text) == source.encode(text).ids, text
        ids = source.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == (
            source.decode(ids, skip_special_tokens=False)
        )


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "default"])
def test_byte_level_gguf_round_trip(tmp_path, pre):
    file = builders.save_gguf(tmp_path / "model.gguf", builders.byte_level(), "gpt2", pre)
    tokenizer = load_tokenizer(file)
    for text in TEXTS:
        expected = text.replace("e\u0301", "\u00e9").replace("A\u030a", "\u00c5")
        result = tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False)
        # Llama 3 vocabularies start with BOS; Qwen2 normalises to composed characters.
        result = result.removeprefix("<s>") if pre == "llama-bpe" else result
        assert result == (expected if pre == "qwen2" else text)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["It", "'s", "Ġ1234", "!!", "ĊĊ", "Ġx"]),
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "!!", "ĊĊ", "Ġx"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "4", "!!ĊĊ", "Ġx"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "!!ĊĊ", "Ġx"]),
        ("default", ["It", "'", "s", "Ġ", "123", "4", "!!", "ĊĊ", "Ġx"]),
    ],
)
def test_pre_tokenizers_cut_as_documented(pre, pieces):
    cut = PRE_TOKENIZERS[pre]().pre_tokenize_str("It's 1234!!\n\n x")
    assert [piece for piece, _ in cut] == pieces
