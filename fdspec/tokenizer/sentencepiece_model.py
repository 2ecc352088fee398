# SPDX-License-Identifier: Apache-2.0
"""Reads SentencePiece's tokenizer.model, a protocol buffer message (sentencepiece_model.proto).

Owns the few fields that matter: pieces, the kind of model, and the normaliser. The encoding is
simple, so neither `sentencepiece` nor `protobuf` is needed. loading.py calls it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from fdspec.core.errors import CheckpointError
from fdspec.tokenizer.sentencepiece_backend import NORMAL, UNKNOWN, SentencePieces

# Fields of the message and of its parts.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE = 3
_CHARACTER_MAP, _DUMMY_PREFIX, _EXTRA_SPACES, _ESCAPES_SPACES = 2, 3, 4, 5
_SPACE_AS_SUFFIX = 24
_UNIGRAM, _BPE = 1, 2
_KINDS = {_UNIGRAM: "unigram", _BPE: "BPE", 3: "word", 4: "character"}

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def read_sentencepiece_model(file: Path) -> SentencePieces:
    """The vocabulary in a tokenizer.model.

    Raises:
        CheckpointError: not such a file, or one of a kind that cannot be rebuilt.
    """
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    try:
        for field, value in _fields(file.read_bytes()):
            if field == _PIECES:
                piece = dict(_fields(_as_bytes(value)))
                tokens.append(_as_bytes(piece.get(_PIECE_TEXT, b"")).decode("utf-8"))
                (score,) = struct.unpack("<f", _as_bytes(piece.get(_PIECE_SCORE, bytes(4))))
                scores.append(score)
                types.append(_as_int(piece.get(_PIECE_TYPE, NORMAL)))
            elif field == _TRAINER:
                trainer = dict(_fields(_as_bytes(value)))
            elif field == _NORMALIZER:
                normalizer = dict(_fields(_as_bytes(value)))
        kind = _as_int(trainer.get(_MODEL_TYPE, _UNIGRAM))
        flags = {
            name: bool(_as_int(normalizer.get(name, 1)))
            for name in (_DUMMY_PREFIX, _EXTRA_SPACES, _ESCAPES_SPACES)
        }
        character_map = _as_bytes(normalizer.get(_CHARACTER_MAP, b""))
    except (ValueError, IndexError, struct.error) as error:
        raise CheckpointError(f"{file}: not a SentencePiece model: {error}") from error
    if not tokens:
        raise CheckpointError(f"{file}: not a SentencePiece model: it has no pieces")
    if kind not in (_UNIGRAM, _BPE):
        raise CheckpointError(
            f"{file}: a SentencePiece model of kind {_KINDS.get(kind, kind)!r} is not supported; "
            "supported: unigram, BPE"
        )
    if not flags[_ESCAPES_SPACES] or trainer.get(_SPACE_AS_SUFFIX):
        raise CheckpointError(
            f"{file}: spaces are not marked at the start of words, which is not supported; convert "
            "the tokenizer to tokenizer.json"
        )
    return SentencePieces(
        tokens=tokens,
        scores=scores,
        types=types,
        unknown=next((t for t, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None),
        adds_space_prefix=flags[_DUMMY_PREFIX],
        is_unigram=kind == _UNIGRAM,
        character_map=character_map,
        removes_extra_spaces=flags[_EXTRA_SPACES],
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields, in order.

    Raises:
        ValueError, IndexError: the bytes are no message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FOUR_BYTES, _EIGHT_BYTES):
            size = 4 if kind == _FOUR_BYTES else 8
        else:
            raise ValueError(f"a field has the unknown kind {kind}")
        if at + size > len(data):
            raise ValueError("a field ends beyond the end of the file")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An integer in groups of 7 bits, the lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("an integer is too long")


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has another kind than expected")
    return value


def _as_int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("a field has another kind than expected")
    return value
