# SPDX-License-Identifier: Apache-2.0
"""Digests of what checkpoint files hold, so that a changed file is never taken for the old one.

Reading all of a large file takes a while, so a digest is remembered beside the weights that were
made from it, for as long as the file has the same size and time of change. `loading.py` calls it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

_CHUNK_BYTES = 16 * 2**20
_DIGEST_BYTES = 20
# A file that changed a moment ago may change again within the resolution of its time of change.
_SETTLED_AFTER_NS = 2 * 10**9


class _Memo(msgspec.Struct, frozen=True):
    """What is remembered of a file."""

    path: str
    size_bytes: int
    mtime_ns: int
    digest: str


def digest_of_files(files: Sequence[Path], memo_folder: Path) -> str:
    """One digest of several files' contents, in order; hexadecimal.

    Args:
        files: each at least one byte long.
        memo_folder: where digests are remembered; one that cannot be written is no error.
    """
    together = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for file in files:
        together.update(_digest_of(file.resolve(), memo_folder).encode())
    return together.hexdigest()


def _digest_of(file: Path, memo_folder: Path) -> str:
    facts = os.stat(file)
    name = hashlib.blake2b(os.fsencode(file), digest_size=_DIGEST_BYTES).hexdigest()
    place = memo_folder / f"{name}.digest"
    memo = _read_memo(place)
    if memo is not None and (memo.path, memo.size_bytes, memo.mtime_ns) == (
        str(file),
        facts.st_size,
        facts.st_mtime_ns,
    ):
        return memo.digest
    digest = content_digest(file)
    if time.time_ns() - facts.st_mtime_ns > _SETTLED_AFTER_NS:
        _write_memo(place, _Memo(str(file), facts.st_size, facts.st_mtime_ns, digest))
    return digest


def content_digest(file: Path) -> str:
    """BLAKE2b over the digests of a file's chunks, which all cores compute."""
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:

        def digest_at(start: int) -> bytes:
            with memoryview(data) as whole, whole[start : start + _CHUNK_BYTES] as chunk:
                return hashlib.blake2b(chunk, digest_size=_DIGEST_BYTES).digest()

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            parts = list(pool.map(digest_at, range(0, len(data), _CHUNK_BYTES)))
    return hashlib.blake2b(b"".join(parts), digest_size=_DIGEST_BYTES).hexdigest()


def _read_memo(place: Path) -> _Memo | None:
    try:
        return msgspec.json.decode(place.read_bytes(), type=_Memo)
    except (OSError, msgspec.MsgspecError):
        return None


def _write_memo(place: Path, memo: _Memo) -> None:
    unfinished = place.with_suffix(f".{secrets.token_hex(8)}.tmp")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished.write_bytes(msgspec.json.encode(memo))
        os.replace(unfinished, place)
    except OSError:
        return
