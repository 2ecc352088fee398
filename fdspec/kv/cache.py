# SPDX-License-Identifier: Apache-2.0
"""The memory of the KV cache: one arena for all layers, as numpy views.

Owns the arena; never decides which block belongs to whom (block_pool.py does). The arena is a
memfd, so that another process on the host can map it. The model runner makes it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdspec.core.errors import ConfigError
from fdspec.core.kv_memory import KVMemory, KVPlane
from fdspec.utils.int8_entries import SCALE_BYTES

_DTYPES: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
    "int8": np.dtype(np.int8),
}
_FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class LayerCache(NamedTuple):
    """Cached keys and values of one layer.

    Attributes:
        key: [blocks, kv_heads, block_size, head_dim] float32, or bfloat16 as uint16; or
            [blocks, kv_heads, block_size, head_dim + 4] int8: codes and the bytes of their float32
            scale (utils.int8_entries). So a block is one run of bytes, scales included.
        value: the same.
    """

    key: NDArray[Any]
    value: NDArray[Any]


@dataclass(frozen=True, slots=True)
class KVCacheLayout:
    """What decides the size of a block.

    Attributes:
        num_layers, num_kv_heads, head_dim: of the model.
        block_size: tokens in a block.
        dtype: "bfloat16", "float32" or "int8".
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ConfigError(
                f"kv_cache_dtype must be one of {', '.join(_DTYPES)}, got {self.dtype!r}"
            )

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Of the views; bfloat16 is uint16."""
        return _DTYPES[self.dtype]

    @property
    def entry_size(self) -> int:
        """Elements of the views that a key or value of one token and head takes."""
        return self.head_dim + (SCALE_BYTES if self.dtype == "int8" else 0)

    @property
    def block_bytes(self) -> int:
        """Memory that one block takes over all layers, keys and values, scales included."""
        entries = self.num_layers * 2 * self.num_kv_heads * self.block_size
        return entries * self.entry_size * self.numpy_dtype.itemsize


class KVCache:
    """The arena and its views.

    Args:
        layout: shape of a block.
        num_blocks: how many blocks; their pages take memory when they are first written.

    Attributes:
        layers: one LayerCache for each layer.
        file_descriptor: the memfd; keys of layer 0, values of layer 0, keys of layer 1, ...
    """

    def __init__(self, layout: KVCacheLayout, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"the KV cache needs at least one block, got {num_blocks}")
        self.layout = layout
        self.num_blocks = num_blocks
        size_bytes = layout.block_bytes * num_blocks
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.file_descriptor = os.memfd_create("fdspec-kv-cache", flags)
        try:
            os.ftruncate(self.file_descriptor, size_bytes)
            # Nobody who maps the arena, in this process or another, may find it shorter one day.
            fcntl.fcntl(self.file_descriptor, fcntl.F_ADD_SEALS, _FIXED_SIZE)
            # The arrays keep the mapping alive; it goes when the last of them does.
            arena = np.frombuffer(mmap.mmap(self.file_descriptor, size_bytes), np.uint8)
        except (OSError, OverflowError) as error:
            os.close(self.file_descriptor)
            raise ConfigError(
                f"a KV cache of {num_blocks} blocks ({size_bytes / 2**30:.2f} GiB) cannot be "
                f"mapped ({error}); lower num_gpu_blocks_override or "
                "gpu_memory_utilization"
            ) from error
        shape = (
            layout.num_layers,
            2,
            num_blocks,
            layout.num_kv_heads,
            layout.block_size,
            layout.entry_size,
        )
        self._arena = arena
        values = arena.view(layout.numpy_dtype).reshape(shape)
        self.layers = tuple(LayerCache(layer[0], layer[1]) for layer in values)

    def memory(self) -> KVMemory:
        """The blocks as bytes; valid until `close`. Does not modify."""
        planes = []
        start = 0
        for layer, arrays in enumerate(self.layers):
            for array in arrays:
                planes.append(KVPlane(layer, start, array.nbytes // self.num_blocks))
                start += array.nbytes
        return KVMemory(self._arena, tuple(planes), self.num_blocks, self.file_descriptor)

    def copy_blocks(self, copies: Iterable[tuple[int, int]]) -> None:
        """Copy whole blocks in all layers, one after another.

        Args:
            copies: (source, destination) block ids.
        """
        for source, destination in copies:
            for layer in self.layers:
                for array in layer:
                    array[destination] = array[source]

    def read_block(self, block_id: int, out: NDArray[np.uint8]) -> None:
        """Copy everything that a block holds to other memory.

        Args:
            block_id: the block.
            out: [layout.block_bytes] uint8; written.
        """
        for array, part in self._parts(block_id, out):
            part[:] = array

    def write_block(self, block_id: int, data: NDArray[np.uint8]) -> None:
        """The way back: `data` is what read_block wrote, of this or another block."""
        for array, part in self._parts(block_id, data):
            array[:] = part

    def _parts(
        self, block_id: int, memory: NDArray[np.uint8]
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
        """(bytes of the block in an array of the cache, their place in `memory`)."""
        start = 0
        for layer in self.layers:
            for array in layer:
                part = array[block_id].reshape(-1).view(np.uint8)
                yield part, memory[start : start + len(part)]
                start += len(part)

    def close(self) -> None:
        """Give the arena back; the views must not be used any more."""
        self.layers = ()
        self._arena = self._arena[:0].copy()
        if self.file_descriptor >= 0:
            os.close(self.file_descriptor)
            self.file_descriptor = -1
