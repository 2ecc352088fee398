# SPDX-License-Identifier: Apache-2.0
"""BlockPool: how many sequences hold each block of the KV cache, and which blocks come next.

Knows nothing of tensors or requests. The batch scheduler is its only caller.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.core.protocols import Match
from fdspec.kv.prefix_index import PrefixIndex


class BlockPool:
    """Blocks 0 .. num_blocks - 1, each free, or held by one or more sequences.

    Implements `core.protocols.BlockPool`. A free block may still be cached: then it keeps what it
    holds until its memory is needed. Blocks that hold nothing are given out first, the one that was
    released last before the others, because its memory is most likely still in the processor's
    cache; then cached ones, the one that was used least recently first.

    Whoever holds a cached block holds those before it too, and releases them after it. So the least
    recently used block is never one that another cached block continues.

    Every call costs O(blocks asked for), however many are cached.

    Attributes:
        prefix_caching: False if nothing is cached.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        """Start with all blocks free.

        Args:
            num_blocks: blocks of the pool, at least 1.
            block_size: tokens in a block, at least 1.
            prefix_caching: False caches nothing.
        """
        assert num_blocks > 0 and block_size > 0, (num_blocks, block_size)
        self._block_size = block_size
        self._num_holders = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        # Free and cached; least recently used first.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._index = PrefixIndex()
        self.prefix_caching = prefix_caching

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self._block_size

    @property
    def num_blocks(self) -> int:
        """All blocks of the pool."""
        return len(self._num_holders)

    @property
    def num_cached(self) -> int:
        """Blocks whose tokens can be found, held or free. Does not modify."""
        return len(self._index)

    def num_free(self) -> int:
        """Blocks that allocate can give. Does not modify."""
        return len(self._free) + len(self._cached)

    def num_empty(self) -> int:
        """Of those, blocks that hold no cached tokens. Does not modify."""
        return len(self._free)

    def num_holders(self, block_id: int) -> int:
        """Sequences that hold a block. Does not modify."""
        return self._num_holders[block_id]

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks, or None if there are not so many (then nothing is taken)."""
        assert count >= 0, count
        if count > self.num_free():
            return None
        split = max(len(self._free) - count, 0)
        taken = self._free[split:][::-1]
        del self._free[split:]
        while len(taken) < count:
            taken.append(self._evict())
        for block_id in taken:
            self._num_holders[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Hold cached blocks once more."""
        for block_id in block_ids:
            if self._num_holders[block_id] == 0:
                del self._cached[block_id]
            self._num_holders[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Give blocks back, the last one of a sequence first; each must be held.

        Those that nobody holds any more are free; cached ones remain so.
        """
        for block_id in block_ids:
            assert self._num_holders[block_id] > 0, f"block {block_id} is released but not held"
            self._num_holders[block_id] -= 1
            if self._num_holders[block_id] > 0:
                continue
            if block_id in self._index:
                self._cached[block_id] = None
            else:
                self._free.append(block_id)

    def match(self, digests: Sequence[bytes], tokens: NDArray[np.int32]) -> Match:
        """The longest cached start of a sequence; see PrefixIndex.match. Does not modify."""
        if not self.prefix_caching:
            return Match()
        return self._index.match(digests, tokens, self._block_size)

    def touch(self, block_id: int) -> None:
        """Count a cached block as used now, without holding it."""
        if self._num_holders[block_id] == 0:
            self._cached.move_to_end(block_id)

    def publish(
        self, block_id: int, parent: bytes, tokens: NDArray[np.int32], digest: bytes | None
    ) -> int:
        """Let others find a held block by its tokens, which have been computed.

        Args:
            block_id: the block.
            parent: name of the prefix before it.
            tokens: its tokens.
            digest: name of the prefix up to its end; None if the block is not full.

        Returns:
            The block that the caller holds now: another one with the same tokens, if there is one,
            in the place of the full block given.
        """
        assert self._num_holders[block_id] > 0, f"block {block_id} is published but not held"
        if not self.prefix_caching or (digest and self._index.find(digest) == block_id):
            return block_id
        # What is known of it is only the start of what it holds now.
        self._index.remove(block_id)
        holder = self._index.insert(block_id, parent, tokens.tobytes(), digest)
        if holder == block_id or digest is None:
            return block_id
        self.share([holder])
        self.release([block_id])
        return holder

    def forget_cached(self) -> None:
        """Let no block be found any more; held ones stay with their holders."""
        self._index = PrefixIndex()
        self._free.extend(reversed(self._cached))
        self._cached.clear()

    def check(self) -> None:
        """Raise AssertionError if the books do not balance. Does not modify."""
        self._index.check()
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert free.isdisjoint(self._cached), "a block is free twice"
        assert not any(block_id in self._index for block_id in free)
        free |= self._cached.keys()
        assert not any(self._num_holders[block_id] for block_id in free), (
            "a block is both free and held"
        )
        num_held = sum(count > 0 for count in self._num_holders)
        assert len(free) + num_held == self.num_blocks, (
            f"{len(free)} free + {num_held} held != {self.num_blocks} blocks"
        )

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        # It may have been forgotten since, because another block serves for it.
        if block_id in self._index:
            assert not self._index.has_children(block_id), "a cached block would lose its prefix"
            self._index.remove(block_id)
        return block_id
