# SPDX-License-Identifier: Apache-2.0
"""A file of packed weights: written once, then mapped read-only by every process that needs them.

Layout: magic; the arrays, each from a page's start; an index of them as JSON, with checksums; a
trailer with the index's place, length and digest, and the magic again. Owns the container alone;
never knows what a weight is for. The weight cache names and keeps such files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import mmap
import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fdspec.ops import PackedWeight, WeightFormat

_MAGIC = b"FDSPECW2"
_TRAILER = struct.Struct("<QQ32s8s")
_PAGE_BYTES = mmap.ALLOCATIONGRANULARITY


class DamagedFile(Exception):
    """The file is not one of packed weights, is incomplete, or lacks what it should hold."""


class _Entry(msgspec.Struct, frozen=True):
    """Place of one array; `weight` describes a matrix, and a vector of float32 has none."""

    offset: int
    size_bytes: int
    checksum: tuple[int, int]
    weight: tuple[WeightFormat, int, int] | None = None


class PackedFile:
    """The weights of one file, as views of its mapping. Not to be written.

    Args:
        path: a file that `PackedFileWriter` finished.

    Raises:
        DamagedFile: it is something else, or not whole.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes < len(_MAGIC) + _TRAILER.size:
                raise DamagedFile(f"it has only {size_bytes} bytes")
            # Populated at once, so that the first request does not fault the pages in one by one.
            data = mmap.mmap(
                file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ
            )
        self._data = np.frombuffer(data, np.uint8)
        self._entries = _read_index(data)
        for name, entry in self._entries.items():
            if _checksum(self._bytes_of(entry)) != entry.checksum:
                raise DamagedFile(f"{name!r} does not have the bytes that were written")

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return len(self._data)

    def matrix(self, name: str, shape: tuple[int, int]) -> PackedWeight:
        """A matrix [out, in].

        Raises:
            DamagedFile: there is none of that name and shape.
        """
        entry = self._entries.get(name)
        if entry is None or entry.weight is None or entry.weight[1:] != shape:
            raise DamagedFile(f"it has no matrix {name!r} of shape {list(shape)}")
        weight_format, out_features, in_features = entry.weight
        return PackedWeight(weight_format, in_features, out_features, self._bytes_of(entry))

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        """A vector, [size] float32.

        Raises:
            DamagedFile: there is none of that name and size.
        """
        entry = self._entries.get(name)
        if entry is None or entry.weight is not None or entry.size_bytes != 4 * size:
            raise DamagedFile(f"it has no vector {name!r} of {size} values")
        return self._bytes_of(entry).view(np.float32)

    def _bytes_of(self, entry: _Entry) -> NDArray[np.uint8]:
        return self._data[entry.offset : entry.offset + entry.size_bytes]


class PackedFileWriter:
    """Writes a file of packed weights, array by array; `finish` makes it whole.

    What is added comes back as a view of the file, so that the original can be freed: memory never
    holds more than one array twice.

    Args:
        path: a new file.

    Raises:
        OSError: it cannot be made; each method raises it when the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("x+b", buffering=0)
        self._entries: dict[str, _Entry] = {}
        self._end = self._write(0, _MAGIC)

    def add_matrix(self, name: str, weight: PackedWeight) -> PackedWeight:
        """Append a matrix whose data is a numpy array; returns it with its data in the file."""
        description = (weight.format, weight.out_features, weight.in_features)
        return dataclasses.replace(weight, data=self._append(name, weight.data, description))

    def add_vector(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Append a vector of float32; returns it in the file."""
        return self._append(name, values.view(np.uint8), None).view(np.float32)

    def finish(self) -> int:
        """Write the index and bring everything to the disk; returns the file's length in bytes."""
        index = msgspec.json.encode(self._entries)
        start, self._end = self._end, self._write(self._end, index)
        digest = hashlib.blake2b(index, digest_size=32).digest()
        self._end = self._write(self._end, _TRAILER.pack(start, len(index), digest, _MAGIC))
        os.fsync(self._file.fileno())
        return self._end

    def close(self) -> None:
        """Close the file; views of it stay."""
        self._file.close()

    def _append(self, name: str, data: NDArray[np.uint8], description: Any) -> NDArray[np.uint8]:
        start = -(-self._end // _PAGE_BYTES) * _PAGE_BYTES
        self._end = self._write(start, data)
        self._entries[name] = _Entry(start, len(data), _checksum(data), description)
        view = mmap.mmap(self._file.fileno(), len(data), access=mmap.ACCESS_READ, offset=start)
        return np.frombuffer(view, np.uint8)

    def _write(self, offset: int, data: Any) -> int:
        """All of the bytes at an offset; returns where they end."""
        left = memoryview(data)
        while left:
            count = os.pwrite(self._file.fileno(), left, offset)
            left, offset = left[count:], offset + count
        return offset


def _checksum(data: NDArray[np.uint8]) -> tuple[int, int]:
    """Sum and exclusive or of all 64-bit words: what damage by chance changes.

    It takes little more time than reading the bytes, which a start does anyway.
    """
    whole = len(data) // 8 * 8
    words = data[:whole].view(np.uint64)
    rest = int.from_bytes(data[whole:].tobytes(), "little")
    total = int(np.add.reduce(words, dtype=np.uint64)) + rest
    return total % 2**64, int(np.bitwise_xor.reduce(words)) ^ rest


def _read_index(data: mmap.mmap) -> dict[str, _Entry]:
    start, length, digest, magic = _TRAILER.unpack(data[-_TRAILER.size :])
    if data[: len(_MAGIC)] != _MAGIC or magic != _MAGIC:
        raise DamagedFile("it does not begin and end as such a file does")
    index = data[start : start + length]
    if start + length + _TRAILER.size != len(data):
        raise DamagedFile(f"its index does not end where the file of {len(data)} bytes does")
    if hashlib.blake2b(index, digest_size=32).digest() != digest:
        raise DamagedFile("its index does not have the digest that it was written with")
    return msgspec.json.decode(index, type=dict[str, _Entry])
