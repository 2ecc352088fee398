# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers, trained here: byte-level BPE, SentencePiece-like BPE, and a GGUF of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers.processors import TemplateProcessing

from tests.tokenizer.corpus import TEXTS

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level(vocab_size: int = 600) -> Tokenizer:
    """Byte-level BPE without a post-processor, like GPT-2 and its heirs."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return backend


def sentencepiece_like(vocab_size: int = 500) -> Tokenizer:
    """BPE over U+2581 words with byte fallback, like Llama 2."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    latin = [text for text in TEXTS if text.isascii() and "<" not in text]
    backend.train_from_iterator(
        latin,
        trainers.BpeTrainer(
            vocab_size=vocab_size + 256,
            special_tokens=["<unk>", *SPECIALS, *bytes_],
            show_progress=False,
            max_token_length=8,
        ),
    )
    # The byte entries are pieces of the model, not special tokens.
    state = json.loads(backend.to_str())
    state["added_tokens"] = [
        token for token in state["added_tokens"] if not token["content"].startswith("<0x")
    ]
    return Tokenizer.from_str(json.dumps(state))


def add_bos(backend: Tokenizer) -> Tokenizer:
    """The same tokenizer with <s> before each text."""
    backend.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend


def save_folder(folder: Path, backend: Tokenizer, **config: Any) -> Path:
    """A folder as models on a hub have it."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        **config,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def save_gguf(
    file: Path, backend: Tokenizer, kind: str, pre: str | None = None, **fields: Any
) -> Path:
    """A GGUF file with a vocabulary and no tensors."""
    state = json.loads(backend.to_str())
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token["content"] for token in state["added_tokens"]}
    types = [3 if token in special else 6 if token.startswith("<0x") else 1 for token in tokens]
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    merges = state["model"]["merges"]
    if kind == "llama":
        rank = {left + right: index for index, (left, right) in reversed([*enumerate(merges)])}
        writer.add_token_scores([-float(rank.get(token, len(merges))) for token in tokens])
    else:
        writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(vocabulary["<s>"])
    writer.add_eos_token_id(vocabulary["</s>"])
    for key, value in fields.items():
        getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
