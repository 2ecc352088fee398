# SPDX-License-Identifier: Apache-2.0
"""Rebuilds a `tokenizers` pipeline from the vocabulary in a GGUF file's metadata.

Owns the table of pre-tokenizers and the two vocabulary kinds, byte-level BPE ("gpt2") and
SentencePiece BPE ("llama"). Never reads files; loading.py calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from fdspec.core.errors import CheckpointError
from fdspec.tokenizer.byte_table import DecoderRules
from fdspec.tokenizer.sentencepiece_backend import (
    CONTROL,
    NORMAL,
    USER_DEFINED,
    SentencePieces,
    build_sentencepiece_backend,
)
from fdspec.utils.gguf_header import GGUFHeader

_PREFIX = "tokenizer.ggml."

_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def build_gguf_backend(header: GGUFHeader) -> tokenizers.Tokenizer:
    """The pipeline: normaliser, pre-tokenizer, model, decoder, special tokens, BOS and EOS.

    Raises:
        CheckpointError: a vocabulary kind or pre-tokenizer that is not known.
    """
    build = _build_byte_level if _is_byte_level(header) else _build_sentencepiece
    backend = build(header)
    _add_special_tokens(backend, header)
    _add_bos_and_eos(backend, header, bos_by_default=_adds_bos_by_default(header))
    return backend


def gguf_vocabulary(header: GGUFHeader) -> dict[str, int]:
    """Ids by vocabulary entry; the last one where entries are equal."""
    tokens: Sequence[str] = header.require(_PREFIX + "tokens")
    return {token: index for index, token in enumerate(tokens)}


def gguf_decoder_rules(header: GGUFHeader) -> DecoderRules:
    """How entries spell bytes; what `read_decoder_rules` says of the pipeline.

    Raises:
        CheckpointError: a vocabulary kind that is not known.
    """
    if _is_byte_level(header):
        return DecoderRules(True, False, False, False)
    return DecoderRules(
        byte_level=False,
        byte_fallback=True,
        space_mark=True,
        strips_first_space=_adds_space_prefix(header),
    )


def gguf_added_tokens(header: GGUFHeader) -> tuple[list[str], list[str]]:
    """Tokens that are found in a text as they are: special ones, and plain ones."""
    tokens: Sequence[str] = header.require(_PREFIX + "tokens")
    special, plain = [], []
    for token, kind in zip(tokens, _token_types(header, len(tokens)), strict=True):
        if kind == CONTROL:
            special.append(token)
        elif kind == USER_DEFINED:
            plain.append(token)
    return special, plain


def gguf_special_ids(header: GGUFHeader) -> tuple[int | None, list[int], dict[str, str]]:
    """BOS id, ids that end a generation, and the named tokens that chat templates use."""
    tokens: Sequence[str] = header.require(_PREFIX + "tokens")
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    named = {}
    for key, name in names.items():
        token_id = _special_id(header, key)
        if token_id is not None:
            named[name] = tokens[token_id]
    eos_ids: list[int] = []
    for key in ("eos", "eot", "eom"):
        token_id = _special_id(header, key)
        if token_id is not None and token_id not in eos_ids:
            eos_ids.append(token_id)
    return _special_id(header, "bos"), eos_ids, named


def _is_byte_level(header: GGUFHeader) -> bool:
    kind = header.require(_PREFIX + "model")
    if kind not in ("gpt2", "llama"):
        raise CheckpointError(
            f"{header.path}: tokenizer.ggml.model {kind!r} is not supported; supported: gpt2, llama"
        )
    return bool(kind == "gpt2")


def _adds_space_prefix(header: GGUFHeader) -> bool:
    return bool(header.metadata.get(_PREFIX + "add_space_prefix", True))


def _special_id(header: GGUFHeader, key: str) -> int | None:
    token_id = header.metadata.get(f"{_PREFIX}{key}_token_id")
    if token_id is None:
        return None
    num_tokens = len(header.require(_PREFIX + "tokens"))
    if not 0 <= token_id < num_tokens:
        raise CheckpointError(
            f"{header.path}: {_PREFIX}{key}_token_id is {token_id}, outside the {num_tokens} tokens"
        )
    return int(token_id)


def _build_byte_level(header: GGUFHeader) -> tokenizers.Tokenizer:
    name = header.metadata.get(_PREFIX + "pre", "default")
    if name not in PRE_TOKENIZERS:
        near = get_close_matches(name, PRE_TOKENIZERS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise CheckpointError(
            f"{header.path}: pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known{hint}; "
            f"known: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in header.require(_PREFIX + "merges")]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=gguf_vocabulary(header),
            merges=merges,
            # These vocabularies hold whole words that their merges do not reach.
            ignore_merges=name in _LLAMA3_NAMES,
        )
    )
    if name in _QWEN2_NAMES:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = PRE_TOKENIZERS[name]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _build_sentencepiece(header: GGUFHeader) -> tokenizers.Tokenizer:
    tokens: Sequence[str] = header.require(_PREFIX + "tokens")
    unknown = _special_id(header, "unknown")
    pieces = SentencePieces(
        tokens=tokens,
        scores=header.require(_PREFIX + "scores"),
        types=_token_types(header, len(tokens)),
        unknown=None if unknown is None else tokens[unknown],
        adds_space_prefix=_adds_space_prefix(header),
    )
    return build_sentencepiece_backend(pieces)


def _token_types(header: GGUFHeader, num_tokens: int) -> Sequence[int]:
    types: Sequence[int] = header.metadata.get(_PREFIX + "token_type", [NORMAL] * num_tokens)
    return types


def _add_special_tokens(backend: tokenizers.Tokenizer, header: GGUFHeader) -> None:
    special, plain = gguf_added_tokens(header)
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain])


def _adds_bos_by_default(header: GGUFHeader) -> bool:
    """What a file without `add_bos_token` means, by kind of vocabulary."""
    if header.metadata[_PREFIX + "model"] == "llama":
        return True
    return header.metadata.get(_PREFIX + "pre") in _LLAMA3_NAMES


def _add_bos_and_eos(
    backend: tokenizers.Tokenizer, header: GGUFHeader, *, bos_by_default: bool
) -> None:
    tokens: Sequence[str] = header.require(_PREFIX + "tokens")

    def wanted(key: str, by_default: bool) -> str | None:
        token_id = _special_id(header, key)
        if token_id is None or not header.metadata.get(f"{_PREFIX}add_{key}_token", by_default):
            return None
        return tokens[token_id]

    bos, eos = wanted("bos", bos_by_default), wanted("eos", False)
    if bos is not None or eos is not None:
        before = [] if bos is None else [f"{bos}:0"]
        after = [] if eos is None else [f"{eos}:0"]
        backend.post_processor = TemplateProcessing(
            single=[*before, "$A:0", *after],
            special_tokens=[
                (token, backend.token_to_id(token)) for token in (bos, eos) if token is not None
            ],
        )


def _byte_level() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _split(*patterns: str) -> Callable[[], Any]:
    """Cut at each pattern in turn, then spell bytes."""

    def build() -> Any:
        cuts: list[Any] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns
        ]
        return pre_tokenizers.Sequence([*cuts, _byte_level()])

    return build


def _digits_then_gpt2() -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


_DIGITS_NAMES = ("smollm", "starcoder", "refact", "codeshell")
_GPT2_NAMES = ("gpt-2", "mpt", "olmo", "phi-2")
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3", "falcon3")
_QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen")

# Names as in `tokenizer.ggml.pre`; each gives the splits that llama.cpp documents for it.
PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(_DIGITS_NAMES, _digits_then_gpt2),
    **dict.fromkeys(_GPT2_NAMES, _gpt2),
    **dict.fromkeys(_LLAMA3_NAMES, _split(_LLAMA3_PATTERN)),
    **dict.fromkeys(_QWEN2_NAMES, _split(_QWEN2_PATTERN)),
    "default": _split(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_PATTERN, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
