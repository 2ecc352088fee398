# SPDX-License-Identifier: Apache-2.0
"""KVMemory: where the blocks of a KV cache lie in its arena, for whoever moves them as bytes."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class KVPlane(NamedTuple):
    """One array of the arena whose first axis counts blocks: the keys of a layer, or its values.

    Attributes:
        layer: of the model; layers of drafting models come behind its own.
        start_bytes: where block 0 begins in the arena.
        block_bytes: size of a block; block b begins at start_bytes + b * block_bytes.
    """

    layer: int
    start_bytes: int
    block_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class KVMemory:
    """The blocks of a KV cache as bytes.

    Attributes:
        arena: [bytes] uint8, all of it.
        planes: in order of layers.
        num_blocks: blocks of each plane.
        file_descriptor: memfd of the arena; -1 if no other process can map it.
    """

    arena: NDArray[np.uint8]
    planes: tuple[KVPlane, ...]
    num_blocks: int
    file_descriptor: int = -1

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return 1 + max(plane.layer for plane in self.planes)

    def layer_blocks(self) -> tuple[tuple[NDArray[np.uint8], ...], ...]:
        """For each layer its planes as [blocks, block bytes] uint8 views."""
        layers: list[list[NDArray[np.uint8]]] = [[] for _ in range(self.num_layers)]
        for layer, start, size in self.planes:
            end = start + size * self.num_blocks
            layers[layer].append(self.arena[start:end].reshape(self.num_blocks, size))
        return tuple(tuple(planes) for planes in layers)

    def prefault(self) -> None:
        """Give every page of the arena its memory now; the first write is else ten times slower.

        Changes no value, but must not run beside a writer.
        """
        self.arena[:: mmap.PAGESIZE] |= 0
