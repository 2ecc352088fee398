# SPDX-License-Identifier: Apache-2.0
"""Reads safetensors files, single or sharded, as views of the mapped files.

Owns the container format; never copies a tensor. bfloat16 comes as uint16, which is also what
Paddle takes for bfloat16. (`safetensors.safe_open` with Paddle copies, and aborts the process when
two slices of one tensor are alive.) The weight loader calls it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fdspec.core.errors import CheckpointError
from fdspec.models.checkpoint.base import Tensor, check_shape

_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class _Entry:
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsCheckpoint:
    """The tensors of one or several files.

    Args:
        files: all shards.

    Raises:
        CheckpointError: a file is damaged, or two hold the same tensor.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._data: dict[Path, np.memmap[tuple[int], np.dtype[np.uint8]]] = {}
        self._entries: dict[str, _Entry] = {}
        for file in self._files:
            if file.stat().st_size < _LENGTH_BYTES:
                raise _not_safetensors(file)
            self._data[file] = np.memmap(file, dtype=np.uint8, mode="r")
            for name, entry in self._read_header(file).items():
                if name in self._entries:
                    raise CheckpointError(
                        f"{file}: tensor {name!r} is also in {self._entries[name].file}"
                    )
                self._entries[name] = entry

    def names(self) -> Sequence[str]:
        """All tensors of all shards."""
        return list(self._entries)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Of a tensor that exists."""
        return self._entries[name].shape

    def file_of(self, name: str) -> str:
        """The shard that holds a tensor, or all of them."""
        if name in self._entries:
            return str(self._entries[name].file)
        return ", ".join(map(str, self._files))

    def bits_per_weight(self, name: str) -> float:
        """32 or 16."""
        return 8 * _DTYPES[self._entries[name].dtype].itemsize

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A view of one tensor: float32, float16, or bfloat16 as uint16. Not to be written.

        Raises:
            CheckpointError: no such tensor, another shape, or another type.
        """
        if name not in self._entries:
            raise CheckpointError(f"{self.file_of(name)}: tensor {name!r} {list(shape)} is missing")
        entry = self._entries[name]
        check_shape(name, entry.shape, shape, entry.file)
        if entry.dtype not in _DTYPES:
            raise CheckpointError(
                f"{entry.file}: tensor {name!r} has type {entry.dtype}, which is not supported; "
                f"supported: {', '.join(_DTYPES)}"
            )
        piece = self._data[entry.file][entry.start : entry.end]
        return piece.view(_DTYPES[entry.dtype]).view(np.ndarray).reshape(shape)

    def _read_header(self, file: Path) -> dict[str, _Entry]:
        data = self._data[file]
        length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
        base = _LENGTH_BYTES + length
        if length > _MAX_HEADER_BYTES or base > len(data):
            raise _not_safetensors(file)
        try:
            header = json.loads(data[_LENGTH_BYTES:base].tobytes())
            return {
                name: self._entry(file, name, facts, base)
                for name, facts in header.items()
                if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{file}: the safetensors header is damaged: {error!r}"
            ) from error

    def _entry(self, file: Path, name: str, facts: dict[str, Any], base: int) -> _Entry:
        dtype = str(facts["dtype"])
        shape = tuple(int(size) for size in facts["shape"])
        first, last = facts["data_offsets"]
        start, end = base + int(first), base + int(last)
        if not base <= start <= end <= len(self._data[file]):
            raise CheckpointError(
                f"{file}: tensor {name!r} ends at byte {end}, beyond the end of the file "
                f"({len(self._data[file])} bytes): the file is incomplete"
            )
        if dtype in _DTYPES and end - start != _DTYPES[dtype].itemsize * int(np.prod(shape)):
            raise CheckpointError(
                f"{file}: tensor {name!r} {list(shape)} {dtype} has {end - start} bytes"
            )
        return _Entry(file, dtype, shape, start, end)


def _not_safetensors(file: Path) -> CheckpointError:
    size_bytes = file.stat().st_size
    return CheckpointError(
        f"{file}: not a safetensors file, or an incomplete one ({size_bytes} bytes)"
    )
