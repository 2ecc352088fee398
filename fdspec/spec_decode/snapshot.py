# SPDX-License-Identifier: Apache-2.0
"""A file of remembered texts, from which a text cache is filled again.

Holds tokens and salts only, no structure of the cache, so that every version of it can read them:

    8 bytes "FDTEXTS\\n", u32 version, u32 vocabulary size, 32 bytes SHA-256 of the rest,
    msgpack: [[salt, num_prompt, tokens as int32 little endian], ...], the oldest first
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from fdspec.spec_decode.text_cache import StoredText

_MAGIC = b"FDTEXTS\n"
_VERSION = 1
_HEAD = struct.Struct("<8sII32s")
_INT32 = np.dtype("<i4")


class SnapshotError(Exception):
    """A file is no snapshot for this model; the message says why."""


def write_snapshot(path: Path, texts: Iterable[StoredText], vocab_size: int) -> None:
    """Write texts into a file that only its owner can read; it replaces the old one at once.

    Args:
        path: the file.
        texts: the oldest first.
        vocab_size: of the model.

    Raises:
        OSError: it cannot be written.
    """
    body = msgspec.msgpack.encode(
        [(t.salt, t.num_prompt, t.tokens.astype(_INT32).tobytes()) for t in texts]
    )
    head = _HEAD.pack(_MAGIC, _VERSION, vocab_size, hashlib.sha256(body).digest())
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(head + body)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_snapshot(path: Path, vocab_size: int) -> list[StoredText]:
    """The texts of a file, the oldest first.

    Args:
        path: the file.
        vocab_size: of the model; another one's texts are refused.

    Raises:
        OSError: it cannot be read.
        SnapshotError: it is damaged, of another version, or of a model with other tokens.
    """
    data = path.read_bytes()
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise SnapshotError("it is not a snapshot of texts")
    _, version, size, digest = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise SnapshotError(f"it has version {version}, this fdspec reads version {_VERSION}")
    body = data[_HEAD.size :]
    if hashlib.sha256(body).digest() != digest:
        raise SnapshotError("its checksum is wrong")
    if size != vocab_size:
        raise SnapshotError(f"its model has {size} tokens, this one {vocab_size}")
    try:
        entries = msgspec.msgpack.decode(body, type=list[tuple[str, int, bytes]])
        texts = [StoredText(s, n, np.frombuffer(b, _INT32).astype(np.int32)) for s, n, b in entries]
    except (msgspec.MsgspecError, ValueError) as error:
        raise SnapshotError(f"it does not hold texts: {error}") from None
    for text in texts:
        if len(text.tokens) and not 0 <= text.tokens.min() <= text.tokens.max() < vocab_size:
            raise SnapshotError("it holds tokens outside the vocabulary")
    return texts
