# SPDX-License-Identifier: Apache-2.0
"""SwapSpace: host memory, or a file, that holds the blocks of preempted sequences.

Owns the memory; which slot holds which block is the batch scheduler's business. The model runner
copies between it and the KV cache.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time

import numpy as np
from numpy.typing import NDArray

from fdspec.core import ConfigError
from fdspec.kv.cache import KVCache
from fdspec.utils.logging import get_logger

logger = get_logger(__name__)


class SwapSpace:
    """Slots of one block each.

    Attributes:
        slots: [num_slots, block_bytes] uint8.
        block_ms: measured time of copying one block out or in.
    """

    def __init__(self, slots: NDArray[np.uint8], block_ms: float) -> None:
        self.slots = slots
        self.block_ms = block_ms

    @property
    def num_slots(self) -> int:
        """Blocks that fit."""
        return len(self.slots)


def open_swap_space(cache: KVCache, size_bytes: int, folder: str | None = None) -> SwapSpace | None:
    """Space for whole blocks of a cache; None if there is none, with one line in the log.

    The disk's blocks are reserved here, so that no later write can fail for want of them. The file
    has no name, and goes with the process. Uses the first block of the cache to measure a copy:
    nothing may be in it yet.

    Args:
        cache: whose blocks are swapped.
        size_bytes: most memory that the slots may take.
        folder: where to put the file; None takes anonymous memory.

    Raises:
        ConfigError: there is no such folder.
    """
    if folder is not None and not os.path.isdir(folder):
        raise ConfigError(f"swap_space_path: there is no folder {folder}; make it, or leave it out")
    block_bytes = cache.layout.block_bytes
    num_slots = size_bytes // block_bytes
    if size_bytes == 0:
        return None
    try:
        if num_slots == 0:
            raise ValueError(f"one block takes {block_bytes} bytes")
        memory = _reserve(num_slots * block_bytes, folder)
    except (OSError, OverflowError, ValueError) as error:
        logger.warning(
            "swap_space of %.3f GB%s cannot be used (%s); preempted sequences are computed again",
            size_bytes / 1e9,
            "" if folder is None else f" in {folder}",
            error,
        )
        return None
    slots = np.frombuffer(memory, np.uint8).reshape(num_slots, block_bytes)
    return SwapSpace(slots, _copy_ms(cache, slots[0]))


def _reserve(size_bytes: int, folder: str | None) -> mmap.mmap:
    if folder is None:
        return mmap.mmap(-1, size_bytes)
    with tempfile.TemporaryFile(dir=folder, prefix="fdspec-swap-") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        return mmap.mmap(file.fileno(), size_bytes)


def _copy_ms(cache: KVCache, slot: NDArray[np.uint8]) -> float:
    """The first round pays for touching the memory, the second is the measure."""
    for _ in range(2):
        started_s = time.perf_counter()
        cache.read_block(0, slot)
        cache.write_block(0, slot)
        elapsed_ms = 1000.0 * (time.perf_counter() - started_s)
    return elapsed_ms / 2
