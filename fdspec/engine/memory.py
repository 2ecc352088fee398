# SPDX-License-Identifier: Apache-2.0
"""How much memory there is, and how many KV blocks fit into its share. Called by `build.py`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fdspec.core import ConfigError

GIB = 2**30
_USUAL_TOKENS = 1024
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def machine_memory_bytes() -> int:
    """Memory that this process may use: the machine's, or its container's limit if smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            total = min(total, int(text))
    return total


def planned_memory_bytes(memory_gib: float | None) -> int:
    """What the configuration plans for: `memory_gib`, or all there is."""
    return machine_memory_bytes() if memory_gib is None else int(memory_gib * GIB)


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Size of the KV cache.

    Attributes:
        num_blocks: blocks of the pool.
        block_size: tokens in a block.
        block_bytes: memory of a block over all layers.
    """

    num_blocks: int
    block_size: int
    block_bytes: int

    @property
    def num_tokens(self) -> int:
        """Tokens that fit."""
        return self.num_blocks * self.block_size

    def describe(self, max_model_len: int, max_num_seqs: int) -> str:
        """One sentence for the log.

        Args:
            max_model_len: most tokens of a sequence.
            max_num_seqs: most sequences at once, however short they are.
        """
        sizes = dict.fromkeys((max_model_len, min(_USUAL_TOKENS, max_model_len)))
        rooms = [
            f"{min(self.num_blocks // -(-size // self.block_size), max_num_seqs)} of {size} tokens"
            for size in sizes
        ]
        return (
            f"KV cache: {self.num_tokens} tokens ({self.num_blocks} blocks of {self.block_size}) "
            f"in {self.num_blocks * self.block_bytes / 1e9:.2f} GB; requests at once: "
            f"{', or '.join(rooms)} (max_num_seqs {max_num_seqs})"
        )

    def complaint(self, max_model_len: int) -> str | None:
        """Why no sequence can have max_model_len tokens; None if one can."""
        # The last output token is never an input, so it needs no slot.
        longest = self.num_tokens + 1
        if longest >= max_model_len:
            return None
        return (
            f"the KV cache holds {self.num_tokens} tokens, so no sequence reaches max_model_len "
            f"{max_model_len}; the longest that fits is {longest}: set max_model_len to at most "
            "that, or give more memory (gpu_memory_utilization, num_gpu_blocks_override)"
        )


def choose_pool_size(
    *,
    block_size: int,
    block_bytes: int,
    weight_bytes: int,
    memory_bytes: int,
    utilization: float,
    max_num_seqs: int,
    max_model_len: int,
    num_blocks_override: int | None = None,
) -> PoolSize:
    """How many KV blocks to make.

    Args:
        block_size: tokens in a block.
        block_bytes: memory of a block.
        weight_bytes: memory that the weights take.
        memory_bytes: memory of the machine.
        utilization: share of it for weights and KV cache.
        max_num_seqs: most sequences at once.
        max_model_len: most tokens of each; more blocks than they all can fill are not made.
        num_blocks_override: take this many instead.

    Raises:
        ConfigError: not one block fits into the share.
    """
    if num_blocks_override is not None:
        return PoolSize(num_blocks_override, block_size, block_bytes)
    left_bytes = int(utilization * memory_bytes) - weight_bytes
    num_blocks = left_bytes // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"gpu_memory_utilization {utilization:g} of {memory_bytes / GIB:.1f} GiB leaves no "
            f"room for a KV cache beside {weight_bytes / GIB:.2f} GiB of weights; raise it, or "
            "set num_gpu_blocks_override"
        )
    most_useful = max_num_seqs * -(-max_model_len // block_size)
    return PoolSize(min(num_blocks, most_useful), block_size, block_bytes)
