# SPDX-License-Identifier: Apache-2.0
"""PrefixIndex: which block of the KV cache holds which tokens, after which tokens before them.

A tree of prefixes: a node is a block, its children are the blocks that continue it. Knows names and
tokens only; who holds a block, and when it is given out again, is the block pool's business.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from fdspec.core.protocols import Match

_DIGEST_BYTES = 16
_TOKEN_BYTES = 4
_tokens_of = attrgetter("tokens")


def root_digest(cache_salt: str) -> bytes:
    """Name of the empty prefix of all requests that share a salt."""
    return blake2b(cache_salt.encode(), digest_size=_DIGEST_BYTES).digest()


def extend_digests(digests: list[bytes], tokens: NDArray[np.int32], block_size: int) -> None:
    """Append the names of the full blocks of `tokens` that are not named yet.

    A name is the digest of the parent's name and of the block's tokens, so it stands for all tokens
    up to the block's end, and for the salt.

    Args:
        digests: [1 + named blocks]; digests[0] is the root, digests[i + 1] the name of block i.
        tokens: [length] int32, of the sequence from its start.
        block_size: tokens in a block.
    """
    for index in range(len(digests) - 1, len(tokens) // block_size):
        block = tokens[index * block_size : (index + 1) * block_size]
        digests.append(
            blake2b(digests[index] + block.tobytes(), digest_size=_DIGEST_BYTES).digest()
        )


class _Node:
    """One cached block.

    Attributes:
        block_id: where the tokens' keys and values are.
        parent: name of the prefix before them.
        tokens: the tokens as bytes of int32; fewer than a block's in a partial block.
        digest: name of the prefix up to their end; None for a partial block.
    """

    __slots__ = ("block_id", "digest", "parent", "tokens")

    def __init__(self, block_id: int, parent: bytes, tokens: bytes, digest: bytes | None) -> None:
        self.block_id = block_id
        self.parent = parent
        self.tokens = tokens
        self.digest = digest


class PrefixIndex:
    """All cached blocks by what they hold.

    Every call costs O(blocks asked for), and for a partial match a binary search among the blocks
    that continue the same prefix.
    """

    def __init__(self) -> None:
        self._full: dict[bytes, _Node] = {}
        self._by_block: dict[int, _Node] = {}
        # Sorted by tokens: those with the longest common start are then neighbours.
        self._children: dict[bytes, list[_Node]] = {}

    def __len__(self) -> int:
        return len(self._by_block)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._by_block

    def find(self, digest: bytes) -> int | None:
        """The full block of that name. Does not modify."""
        node = self._full.get(digest)
        return None if node is None else node.block_id

    def match(self, digests: Sequence[bytes], tokens: NDArray[np.int32], block_size: int) -> Match:
        """The longest cached start of a sequence. Does not modify.

        Args:
            digests: as `extend_digests` makes them; names for at least the full blocks of `tokens`.
            tokens: [length] int32, from the sequence's start; no more than these are matched.
            block_size: tokens in a block.
        """
        block_ids: list[int] = []
        for digest in digests[1 : len(tokens) // block_size + 1]:
            node = self._full.get(digest)
            if node is None:
                break
            block_ids.append(node.block_id)
        start = len(block_ids) * block_size
        partial_block, num_partial = self._best_start(
            digests[len(block_ids)], tokens[start : start + block_size].tobytes()
        )
        return Match(tuple(block_ids), partial_block, num_partial)

    def insert(self, block_id: int, parent: bytes, tokens: bytes, digest: bytes | None) -> int:
        """Name a block; returns the block that holds these tokens from now on.

        That is another one if the tokens were cached already. A block that holds only the start of
        the new tokens is forgotten, because the new one serves for it too.

        Args:
            block_id: not named yet.
            parent: name of the prefix before the block.
            tokens: its tokens as bytes of int32.
            digest: name of the prefix up to its end; None for a partial block.
        """
        assert block_id not in self._by_block, block_id
        siblings = self._children.setdefault(parent, [])
        place = bisect_left(siblings, tokens, key=_tokens_of)
        if place < len(siblings) and siblings[place].tokens.startswith(tokens):
            return siblings[place].block_id
        if place > 0 and tokens.startswith(siblings[place - 1].tokens):
            place -= 1
            shorter = siblings.pop(place)
            del self._by_block[shorter.block_id]
        node = _Node(block_id, parent, tokens, digest)
        siblings.insert(place, node)
        self._by_block[block_id] = node
        if digest is not None:
            self._full[digest] = node
        return block_id

    def remove(self, block_id: int) -> None:
        """Forget a block; unknown ones are ignored."""
        node = self._by_block.pop(block_id, None)
        if node is None:
            return
        siblings = self._children[node.parent]
        del siblings[bisect_left(siblings, node.tokens, key=_tokens_of)]
        if not siblings:
            del self._children[node.parent]
        if node.digest is not None:
            del self._full[node.digest]

    def has_children(self, block_id: int) -> bool:
        """True if cached blocks continue this one. Does not modify."""
        digest = self._by_block[block_id].digest
        return digest is not None and digest in self._children

    def check(self) -> None:
        """Raise AssertionError if the tree is not consistent. Does not modify."""
        nodes = [node for siblings in self._children.values() for node in siblings]
        assert len(nodes) == len(self._by_block)
        for parent, siblings in self._children.items():
            assert siblings, "a prefix without continuation has a list of them"
            for node, following in zip(siblings, [*siblings[1:], None], strict=True):
                assert self._by_block[node.block_id] is node and node.parent == parent
                assert node.digest is None or self._full[node.digest] is node
                assert following is None or node.tokens < following.tokens
                assert following is None or not following.tokens.startswith(node.tokens)
        assert len(self._full) == sum(node.digest is not None for node in nodes)

    def _best_start(self, parent: bytes, tokens: bytes) -> tuple[int | None, int]:
        """The child with the longest common start, and how many tokens that is."""
        siblings = self._children.get(parent)
        best: tuple[int | None, int] = (None, 0)
        if siblings and tokens:
            place = bisect_left(siblings, tokens, key=_tokens_of)
            for node in siblings[max(place - 1, 0) : place + 1]:
                common = _num_common(node.tokens, tokens)
                if common > best[1]:
                    best = (node.block_id, common)
        return best


def _num_common(one: bytes, other: bytes) -> int:
    """Tokens at the start of both."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length // _TOKEN_BYTES
    first = np.frombuffer(one, np.int32, length // _TOKEN_BYTES)
    second = np.frombuffer(other, np.int32, length // _TOKEN_BYTES)
    return int((first != second).argmax())
