# SPDX-License-Identifier: Apache-2.0
"""Checksums of blocks: xxh3_64 over the bytes of one block in one layer, plane after plane.

They find what was overwritten or damaged on the way; they do not stop somebody who means harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

Layers = Sequence[Sequence[NDArray[np.uint8]]]


def checksum(planes: Sequence[NDArray[np.uint8]], block_id: int) -> int:
    """Of one block in one layer.

    Args:
        planes: the layer's planes, each [blocks, block bytes] uint8.
        block_id: which block.
    """
    state = xxhash.xxh3_64()
    for plane in planes:
        state.update(plane[block_id])
    return state.intdigest()


def block_checksums(layers: Layers, block_ids: Sequence[int]) -> bytes:
    """Of all layers of some blocks.

    Args:
        layers: `KVMemory.layer_blocks()`.
        block_ids: which blocks.

    Returns:
        [layers, blocks] little-endian uint64.
    """
    sums = [[checksum(planes, block_id) for block_id in block_ids] for planes in layers]
    return np.array(sums, dtype="<u8").tobytes()


def first_damaged(
    layers: Layers, block_ids: Sequence[int], indices: Iterable[int], sums: bytes
) -> tuple[int, int] | None:
    """The first block that is not what the checksums say.

    Args:
        layers: `KVMemory.layer_blocks()` of the copy.
        block_ids: blocks of the copy, in order of position.
        indices: which of them to check.
        sums: as `block_checksums` of the original made them.

    Returns:
        (layer, index), or None if all are right.
    """
    table = np.frombuffer(sums, dtype="<u8").reshape(len(layers), len(block_ids)).tolist()
    for index in indices:
        for layer, planes in enumerate(layers):
            if checksum(planes, block_ids[index]) != table[layer][index]:
                return layer, index
    return None
