# SPDX-License-Identifier: Apache-2.0
"""Rebuilds a SentencePiece vocabulary as a `tokenizers` pipeline. Never reads files.

GGUF files and tokenizer.model hold the same pieces with scores and types; their readers call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers

# Types of pieces, as SentencePiece numbers them.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_SPACE_MARK = "\u2581"
_FIRST_BYTE = "<0x00>"


@dataclass(frozen=True, slots=True)
class SentencePieces:
    """A vocabulary.

    Attributes:
        tokens: pieces by id.
        scores: of each; log-probabilities in a unigram model, ranks of merges in BPE.
        types: of each: NORMAL, CONTROL, ...
        unknown: the piece for what cannot be spelled; None if there is none.
        adds_space_prefix: a text begins with a space that is not in it.
        is_unigram: the likeliest pieces are chosen; False joins pairs (BPE).
        character_map: normalisation of characters as SentencePiece compiles it; empty: none.
        removes_extra_spaces: of several spaces one is left, and none at the ends.
    """

    tokens: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    unknown: str | None
    adds_space_prefix: bool
    is_unigram: bool = False
    character_map: bytes = b""
    removes_extra_spaces: bool = False


def build_sentencepiece_backend(pieces: SentencePieces) -> tokenizers.Tokenizer:
    """Normaliser, model and decoder; without special tokens (`add_special_pieces`)."""
    backend = tokenizers.Tokenizer(_unigram(pieces) if pieces.is_unigram else _bpe(pieces))
    steps: list[Any] = []
    if pieces.character_map:
        steps.append(normalizers.Precompiled(pieces.character_map))
    if pieces.removes_extra_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if pieces.adds_space_prefix:
        steps.append(normalizers.Prepend(_SPACE_MARK))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE_MARK)])
    undo: list[Any] = [
        decoders.Replace(_SPACE_MARK, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if pieces.adds_space_prefix:
        undo.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(undo)
    return backend


def add_special_pieces(backend: tokenizers.Tokenizer, pieces: SentencePieces) -> None:
    """Have control and user-defined pieces found in a text as they are."""
    typed = list(zip(pieces.tokens, pieces.types, strict=True))
    control = [token for token, kind in typed if kind == CONTROL]
    plain = [token for token, kind in typed if kind == USER_DEFINED]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain])


def _bpe(pieces: SentencePieces) -> Any:
    vocabulary = {token: index for index, token in enumerate(pieces.tokens)}
    return models.BPE(
        vocab=vocabulary,
        merges=_merges_by_score(pieces, vocabulary),
        unk_token=pieces.unknown,
        fuse_unk=True,
        byte_fallback=_FIRST_BYTE in vocabulary,
    )


def _unigram(pieces: SentencePieces) -> Any:
    unknown = None if pieces.unknown is None else pieces.tokens.index(pieces.unknown)
    return models.Unigram(
        list(zip(pieces.tokens, map(float, pieces.scores), strict=True)),
        unk_id=unknown,
        byte_fallback=_FIRST_BYTE in pieces.tokens,
    )


def _merges_by_score(pieces: SentencePieces, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose result scores highest; as a ranked list of pairs."""
    ranked: list[tuple[float, int, int, str, str]] = []
    for index, token in enumerate(pieces.tokens):
        if pieces.types[index] != NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                halves = vocabulary[left], vocabulary[right]
                ranked.append((-pieces.scores[index], *halves, left, right))
    ranked.sort(key=lambda entry: entry[:3])
    return [(left, right) for _, _, _, left, right in ranked]
