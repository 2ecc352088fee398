# SPDX-License-Identifier: Apache-2.0
"""The memory of the KV cache: one arena for all layers, as numpy views.

Owns the arena; never decides which block belongs to whom (block_pool.py does). The arena is a
memfd, so that another process on the host can map it. The model runner makes it.
"""

from __future__ import annotations

import fcntl
import math
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


class ExtraLayers(NamedTuple):
    """Layers of a cache beside the model's own, in the same blocks: what a drafting model keeps.

    Whatever moves blocks (copies, swapping, a handoff) moves them too.

    Attributes:
        num_layers: how many.
        num_arrays: of each: 2 for keys and values, 1 for hidden states.
        num_heads, head_dim: an entry of a token; hidden states are one wide head.
        dtype: as in KVCacheLayout.
        num_scratch_blocks: blocks behind those of the pool, for entries that nobody keeps.
        taps: of hidden states: for each layer, behind how many layers of the model they are.
    """

    num_layers: int
    num_arrays: int
    num_heads: int
    head_dim: int
    dtype: str
    num_scratch_blocks: int = 0
    taps: tuple[int, ...] = ()

    def block_shape(self, block_size: int) -> tuple[int, int, int]:
        """Of a block in one array, in elements of the views."""
        return self.num_heads, block_size, _entry_size(self.head_dim, self.dtype)

    def block_bytes(self, block_size: int) -> int:
        """Memory of a block in one array."""
        return math.prod(self.block_shape(block_size)) * _DTYPES[self.dtype].itemsize


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
        extra: layers beside the model's, group by group.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str = "bfloat16"
    extra: tuple[ExtraLayers, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ConfigError(
                f"kv_cache_dtype must be one of {', '.join(_DTYPES)}, got {self.dtype!r}"
            )

    @property
    def groups(self) -> tuple[ExtraLayers, ...]:
        """All layers: the model's, then the extra ones."""
        own = ExtraLayers(self.num_layers, 2, self.num_kv_heads, self.head_dim, self.dtype)
        return own, *self.extra

    @property
    def block_bytes(self) -> int:
        """Memory that one block takes over all layers, scales included."""
        return sum(
            group.num_layers * group.num_arrays * group.block_bytes(self.block_size)
            for group in self.groups
        )

    @property
    def scratch_bytes(self) -> int:
        """Memory of all scratch blocks."""
        return sum(
            group.num_layers
            * group.num_arrays
            * group.num_scratch_blocks
            * group.block_bytes(self.block_size)
            for group in self.groups
        )


class KVCache:
    """The arena and its views.

    Args:
        layout: shape of a block.
        num_blocks: how many blocks; their pages take memory when they are first written.

    Attributes:
        layers: one LayerCache for each layer of the model.
        extra: for each group of extra layers its layers, each as its arrays of the shape
            [blocks + scratch blocks, heads, block_size, elements of an entry].
        file_descriptor: the memfd; keys of layer 0, values of layer 0, keys of layer 1, ...
    """

    def __init__(self, layout: KVCacheLayout, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"the KV cache needs at least one block, got {num_blocks}")
        self.layout = layout
        self.num_blocks = num_blocks
        size_bytes = layout.block_bytes * num_blocks + layout.scratch_bytes
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
        self._arena = arena
        groups = _cut_arena(arena, layout, num_blocks)
        self.layers = tuple(LayerCache(*arrays) for arrays in groups[0])
        self.extra = groups[1:]

    def memory(self) -> KVMemory:
        """The blocks as bytes; valid until `close`. Does not modify."""
        planes = []
        start = 0
        for layer, arrays in enumerate(self._all_layers()):
            for array in arrays:
                planes.append(KVPlane(layer, start, array[0].nbytes))
                start += array.nbytes
        return KVMemory(self._arena, tuple(planes), self.num_blocks, self.file_descriptor)

    def copy_blocks(self, copies: Iterable[tuple[int, int]]) -> None:
        """Copy whole blocks in all layers, one after another.

        Args:
            copies: (source, destination) block ids.
        """
        for source, destination in copies:
            for layer in self._all_layers():
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
        for layer in self._all_layers():
            for array in layer:
                part = array[block_id].reshape(-1).view(np.uint8)
                yield part, memory[start : start + len(part)]
                start += len(part)

    def _all_layers(self) -> tuple[tuple[NDArray[Any], ...], ...]:
        return self.layers + tuple(layer for group in self.extra for layer in group)

    def taps(self) -> dict[int, list[NDArray[np.uint16]]]:
        """Where the hidden states behind so many layers of the model are kept.

        Each [blocks, 1, block_size, hidden size] bfloat16. Does not modify.
        """
        found: dict[int, list[NDArray[np.uint16]]] = {}
        for group, layers in zip(self.layout.extra, self.extra, strict=True):
            for num_layers, (states,) in zip(group.taps, layers if group.taps else (), strict=True):
                found.setdefault(num_layers, []).append(states)
        return found

    def close(self) -> None:
        """Give the arena back; the views must not be used any more."""
        self.layers = ()
        self.extra = ()
        self._arena = self._arena[:0].copy()
        if self.file_descriptor >= 0:
            os.close(self.file_descriptor)
            self.file_descriptor = -1


def _cut_arena(
    arena: NDArray[np.uint8], layout: KVCacheLayout, num_blocks: int
) -> tuple[tuple[tuple[NDArray[Any], ...], ...], ...]:
    """For each group of layers, for each layer, its arrays; one behind the other."""
    start = 0
    groups = []
    for group in layout.groups:
        num_rows = num_blocks + group.num_scratch_blocks
        shape = (group.num_layers, group.num_arrays, num_rows)
        size = math.prod(shape) * group.block_bytes(layout.block_size)
        values = arena[start : start + size].view(_DTYPES[group.dtype])
        layers = values.reshape(*shape, *group.block_shape(layout.block_size))
        groups.append(tuple(tuple(layer) for layer in layers))
        start += size
    return tuple(groups)


def _entry_size(head_dim: int, dtype: str) -> int:
    """Elements of the views that a key or value of one token and head takes."""
    return head_dim + (SCALE_BYTES if dtype == "int8" else 0)
