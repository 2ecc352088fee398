# SPDX-License-Identifier: Apache-2.0
"""Reads the header of a GGUF file: metadata and where each tensor lies.

Owns the container format alone; never reads tensor data and never imports paddle. The tokenizer,
the model configuration and the checkpoint reader call it. `gguf.GGUFReader` reads the same facts,
but makes one numpy array for each vocabulary entry, which takes seconds in every process.
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fdspec.core.errors import CheckpointError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor's entry.

    Attributes:
        name: as in the file.
        shape: outermost dimension first (the file stores the reverse).
        type_id: ggml type number.
        offset_bytes: first byte of the data, from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a GGUF file says about itself.

    Attributes:
        path: the file.
        metadata: values by key; scalars as Python values, arrays as lists.
        tensors: entries by name, in file order.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]

    def require(self, key: str) -> Any:
        """The value of a key that must exist.

        Raises:
            CheckpointError: names the file and the key.
        """
        if key not in self.metadata:
            raise CheckpointError(f"{self.path}: the GGUF metadata lacks {key!r}")
        return self.metadata[key]


def read_gguf_header(path: Path) -> GGUFHeader:
    """Read metadata and tensor entries; shared by all who ask, and not to be changed.

    Raises:
        CheckpointError: not a GGUF file, an unknown version, or a file that ends too early.
    """
    facts = os.stat(path)
    return _read(path, facts.st_size, facts.st_mtime_ns)


def forget_gguf_headers() -> None:
    """Free what is kept for the next who asks; a vocabulary takes some megabytes."""
    _read.cache_clear()


@functools.lru_cache(maxsize=1)
def _read(path: Path, size_bytes: int, mtime_ns: int) -> GGUFHeader:
    """The header of a file; a file that has changed is another one."""
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise CheckpointError(f"{path}: not a GGUF file (it does not start with 'GGUF')")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Cursor(path, data).header()
            except (struct.error, IndexError, UnicodeDecodeError) as error:
                raise CheckpointError(
                    f"{path}: the GGUF header is damaged or the file is incomplete "
                    f"({len(data)} bytes): {error}"
                ) from error


class _Cursor:
    """A read position in the mapped file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._at = len(_MAGIC)

    def header(self) -> GGUFHeader:
        version = self._number("<I")
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{self._path}: GGUF version {version} is not supported; "
                f"supported: {', '.join(map(str, _VERSIONS))} (little-endian)"
            )
        num_tensors = self._number("<Q")
        num_keys = self._number("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            metadata[key] = self._value(self._number("<I"))
        entries = [self._tensor() for _ in range(num_tensors)]
        alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
        if alignment <= 0 or alignment & (alignment - 1):
            raise CheckpointError(
                f"{self._path}: general.alignment is {alignment}, not a power of 2"
            )
        base = (self._at + alignment - 1) // alignment * alignment
        tensors = {
            name: GGUFTensor(name, shape, type_id, base + offset)
            for name, shape, type_id, offset in entries
        }
        if len(tensors) != num_tensors:
            raise CheckpointError(f"{self._path}: two tensors have the same name")
        return GGUFHeader(self._path, metadata, tensors)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dimensions = self._number("<I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise CheckpointError(f"{self._path}: tensor {name!r} has {num_dimensions} dimensions")
        dimensions = [self._number("<Q") for _ in range(num_dimensions)]
        return name, tuple(reversed(dimensions)), self._number("<I"), self._number("<Q")

    def _number(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return int(value)

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise IndexError(f"{count} bytes wanted at byte {self._at}")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def _string(self) -> str:
        return self._bytes(self._number("<Q")).decode("utf-8")

    def _strings(self, count: int) -> list[str]:
        """The vocabulary and its merges: hundreds of thousands of entries, so a tight loop."""
        data, at = self._data, self._at
        read_length = struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            (length,) = read_length(data, at)
            at += 8
            piece = data[at : at + length]
            if len(piece) != length:
                raise IndexError(f"{length} bytes wanted at byte {at}")
            strings.append(piece.decode("utf-8"))
            at += length
        self._at = at
        return strings

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item_kind = self._number("<I")
            count = self._number("<Q")
            if item_kind in _SCALARS:
                dtype = _SCALARS[item_kind]
                return np.frombuffer(self._bytes(count * dtype.itemsize), dtype).tolist()
            if item_kind == _STRING:
                return self._strings(count)
            return [self._value(item_kind) for _ in range(count)]
        if kind in _SCALARS:
            dtype = _SCALARS[kind]
            return np.frombuffer(self._bytes(dtype.itemsize), dtype)[0].item()
        raise CheckpointError(f"{self._path}: unknown GGUF value type {kind}")
