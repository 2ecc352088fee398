# SPDX-License-Identifier: Apache-2.0
"""BlockPool: which blocks of the KV cache are free and which are held.

Knows nothing of tensors, tokens or requests. The batch scheduler is its only caller.
"""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """Blocks 0 .. num_blocks - 1, each free or held by exactly one sequence.

    Implements `core.protocols.BlockPool`. Every call costs O(blocks asked for). A block that was
    just released is given out first, because its memory is most likely still cached.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Start with all blocks free.

        Args:
            num_blocks: blocks of the pool, at least 1.
            block_size: tokens in a block, at least 1.
        """
        assert num_blocks > 0 and block_size > 0, (num_blocks, block_size)
        self._block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_held = bytearray(num_blocks)

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self._block_size

    @property
    def num_blocks(self) -> int:
        """All blocks of the pool."""
        return len(self._is_held)

    def num_free(self) -> int:
        """Blocks that allocate can give. Does not modify."""
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks, or None if there are not so many (then nothing is taken)."""
        assert count >= 0, count
        if count > len(self._free):
            return None
        split = len(self._free) - count
        taken = self._free[split:][::-1]
        del self._free[split:]
        for block_id in taken:
            self._is_held[block_id] = 1
        return taken

    def release(self, block_ids: Iterable[int]) -> None:
        """Give blocks back; each must be held."""
        for block_id in block_ids:
            assert self._is_held[block_id], f"block {block_id} is released but not held"
            self._is_held[block_id] = 0
            self._free.append(block_id)

    def check(self) -> None:
        """Raise AssertionError if the books do not balance. Does not modify."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert free.isdisjoint(i for i, held in enumerate(self._is_held) if held), (
            "a block is both free and held"
        )
        num_held = sum(self._is_held)
        assert len(free) + num_held == self.num_blocks, (
            f"{len(free)} free + {num_held} held != {self.num_blocks} blocks"
        )
