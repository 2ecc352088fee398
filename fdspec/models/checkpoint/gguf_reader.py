# SPDX-License-Identifier: Apache-2.0
"""Reads the tensors of a GGUF file.

Owns the block layouts of Q4_0, Q4_1 and Q8_0, which come as integer codes without loss; all other
types are dequantised by the `gguf` package. Never imports paddle. The weight loader calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from fdspec.core.errors import CheckpointError
from fdspec.models.checkpoint.base import QuantizedTensor, Tensor, check_shape
from fdspec.utils.gguf_header import GGUFHeader, GGUFTensor

_GROUP = 32
_PLAIN: dict[gguf.GGMLQuantizationType, np.dtype[Any]] = {
    gguf.GGMLQuantizationType.F32: np.dtype("<f4"),
    gguf.GGMLQuantizationType.F16: np.dtype("<f2"),
    gguf.GGMLQuantizationType.BF16: np.dtype("<u2"),
}


class GGUFCheckpoint:
    """The tensors of one file, under the file's own names.

    Args:
        header: as `read_gguf_header` gives it.
    """

    def __init__(self, header: GGUFHeader) -> None:
        self._header = header
        self._data = np.memmap(header.path, dtype=np.uint8, mode="r")

    def names(self) -> Sequence[str]:
        """All tensors of the file."""
        return list(self._header.tensors)

    def file_of(self, name: str) -> str:
        """The file."""
        return str(self._header.path)

    def bits_per_weight(self, name: str) -> float:
        """From 1.6 (IQ1_S) to 32, scales included."""
        values, size_bytes = gguf.GGML_QUANT_SIZES[self._kind(self._header.tensors[name])]
        return float(8 * size_bytes / values)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor: a view for F32, F16 and BF16 (as uint16), codes for Q4_0, Q4_1 and Q8_0, and
        dequantised float32 for every other type. Not to be written.

        Raises:
            CheckpointError: no such tensor, another shape, an incomplete file or an unknown type.
        """
        path = self._header.path
        entry = self._header.tensors.get(name)
        if entry is None:
            raise CheckpointError(f"{path}: tensor {name!r} {list(shape)} is missing")
        check_shape(name, entry.shape, shape, path)
        kind = self._kind(entry)
        blocks = self._blocks(entry, kind)
        if kind in _PLAIN:
            return blocks.reshape(-1).view(_PLAIN[kind]).reshape(shape)
        if kind == gguf.GGMLQuantizationType.Q4_0:
            return _read_q4_0(blocks, shape)
        if kind == gguf.GGMLQuantizationType.Q4_1:
            return _read_q4_1(blocks, shape)
        if kind == gguf.GGMLQuantizationType.Q8_0:
            return _read_q8_0(blocks, shape)
        try:
            values: NDArray[np.float32] = dequantize(blocks.reshape(*shape[:-1], -1), kind)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{path}: tensor {name!r} has type {kind.name}, which the gguf package cannot "
                "dequantise"
            ) from error
        return values

    def _kind(self, entry: GGUFTensor) -> gguf.GGMLQuantizationType:
        try:
            return gguf.GGMLQuantizationType(entry.type_id)
        except ValueError as error:
            raise CheckpointError(
                f"{self._header.path}: tensor {entry.name!r} has type number {entry.type_id}, "
                "which the gguf package does not know; a newer version may"
            ) from error

    def _blocks(self, entry: GGUFTensor, kind: gguf.GGMLQuantizationType) -> NDArray[np.uint8]:
        """[blocks, bytes of a block] uint8, a view."""
        values_in_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        if entry.shape[-1] % values_in_block:
            raise CheckpointError(
                f"{self._header.path}: tensor {entry.name!r} {list(entry.shape)} does not divide "
                f"into blocks of {values_in_block} ({kind.name})"
            )
        num_blocks = int(np.prod(entry.shape)) // values_in_block
        end = entry.offset_bytes + num_blocks * block_bytes
        if end > len(self._data):
            raise CheckpointError(
                f"{self._header.path}: tensor {entry.name!r} ends at byte {end}, beyond the end of "
                f"the file ({len(self._data)} bytes): the file is incomplete"
            )
        piece = self._data[entry.offset_bytes : end].view(np.ndarray)
        return piece.reshape(num_blocks, block_bytes)


def _halves(blocks: NDArray[np.uint8], first_byte: int, rows: int) -> NDArray[np.float32]:
    """[rows, groups] float32: the float16 at a byte of each block."""
    raw = np.ascontiguousarray(blocks[:, first_byte : first_byte + 2])
    return raw.view("<f2").astype(np.float32).reshape(rows, -1)


def _nibbles(packed: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Codes of 16 bytes a block: the low nibbles are its first half, the high ones its second."""
    codes = np.empty((len(packed), _GROUP), dtype=np.uint8)
    np.bitwise_and(packed, 0x0F, out=codes[:, : _GROUP // 2])
    np.right_shift(packed, 4, out=codes[:, _GROUP // 2 :])
    return codes.reshape(shape)


def _read_q4_0(blocks: NDArray[np.uint8], shape: tuple[int, ...]) -> QuantizedTensor:
    """Block: float16 scale, 16 bytes of codes; value = scale * (code - 8)."""
    codes = _nibbles(blocks[:, 2:], shape).view(np.int8) - np.int8(8)
    return QuantizedTensor(codes, _halves(blocks, 0, shape[0]), None, 4, _GROUP)


def _read_q4_1(blocks: NDArray[np.uint8], shape: tuple[int, ...]) -> QuantizedTensor:
    """Block: float16 scale, float16 minimum, 16 bytes of codes; value = scale * code + minimum."""
    codes = _nibbles(blocks[:, 4:], shape)
    minima = _halves(blocks, 2, shape[0])
    return QuantizedTensor(codes, _halves(blocks, 0, shape[0]), minima, 4, _GROUP)


def _read_q8_0(blocks: NDArray[np.uint8], shape: tuple[int, ...]) -> QuantizedTensor:
    """Block: float16 scale, 32 signed bytes; value = scale * code."""
    codes = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).reshape(shape)
    return QuantizedTensor(codes, _halves(blocks, 0, shape[0]), None, 8, _GROUP)
