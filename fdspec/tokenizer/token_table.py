# SPDX-License-Identifier: Apache-2.0
"""TokenTable: what an engine needs to know of a tokenizer, which is not how to encode.

From a GGUF file it is read without building the encoder, which takes longer than all the rest.
The engine's construction calls `load_token_table`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fdspec.tokenizer.byte_table import build_byte_table
from fdspec.tokenizer.gguf_vocabulary import (
    gguf_added_tokens,
    gguf_decoder_rules,
    gguf_special_ids,
    gguf_vocabulary,
)
from fdspec.tokenizer.loading import find_tokenizer, load_tokenizer
from fdspec.utils.gguf_header import read_gguf_header


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The tokens of a model as the engine sees them; the same as its Tokenizer says.

    Attributes:
        vocab_size: one more than the largest id; the model's logits may be wider (padding).
        eos_ids: ids that end a generation.
        token_bytes: bytes of every id in 0 .. vocab_size - 1; special tokens have none.
    """

    vocab_size: int
    eos_ids: tuple[int, ...]
    token_bytes: list[bytes]


def load_token_table(path: str | Path) -> TokenTable:
    """The tokens of a model; raises as `load_tokenizer` does, but for what only encoding needs.

    Args:
        path: model folder with `tokenizer.json`, folder with one GGUF file, or a GGUF file.
    """
    location = find_tokenizer(Path(path))
    if location.is_dir():
        tokenizer = load_tokenizer(location)
        return TokenTable(tokenizer.vocab_size, tokenizer.eos_ids, tokenizer.token_bytes())
    header = read_gguf_header(location)
    special, plain = gguf_added_tokens(header)
    vocabulary = gguf_vocabulary(header)
    table = build_byte_table(
        vocabulary, {vocabulary[token]: token for token in plain}, gguf_decoder_rules(header)
    )
    for token in special:
        table[vocabulary[token]] = b""
    _, eos_ids, _ = gguf_special_ids(header)
    return TokenTable(len(table), tuple(eos_ids), table)
