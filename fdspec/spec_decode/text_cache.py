# SPDX-License-Identifier: Apache-2.0
"""TextCache: texts of many requests in suffix trees, one tree for each cache salt.

Owns which texts stay: the ones that ended first leave first, when there are too many of them or
they take too many bytes. Shared by the suffix and the memory proposer. No text is ever found under
another salt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdspec.ops import SuffixTree

_REMOVED_AT_ONCE = 4096
"""Positions that leave a tree in one go: one long text must not hold up a step."""


@dataclass(eq=False, slots=True)
class CachedText:
    """One text in the cache.

    Attributes:
        salt: its tree.
        number: of the text in the tree.
        num_prompt: how many of its first tokens are a prompt.
    """

    salt: str
    number: int
    num_prompt: int


class StoredText(NamedTuple):
    """A text outside the cache.

    Attributes:
        salt: under which it may be found.
        num_prompt: how many of its first tokens are a prompt.
        tokens: [length] int32.
    """

    salt: str
    num_prompt: int
    tokens: NDArray[np.int32]


class TextCache:
    """Growing texts, and finished ones in the order in which they ended."""

    def __init__(self, *, max_depth: int, max_texts: int | None, max_bytes: int) -> None:
        """Start empty.

        Args:
            max_depth: longest match and draft together, in tokens.
            max_texts: most finished texts; None is no limit.
            max_bytes: most bytes of all trees; growing texts may exceed it.
        """
        self._max_depth = max_depth
        self._max_texts = max_texts
        self._max_bytes = max_bytes
        self._trees: dict[str, SuffixTree] = {}
        self._num_texts: dict[str, int] = {}
        self._tree_bytes: dict[str, int] = {}
        self._finished: deque[CachedText] = deque()
        self._leaving: CachedText | None = None
        self.num_bytes = 0

    def begin(self, salt: str, num_prompt: int = 0) -> CachedText:
        """A new text that grows."""
        tree = self._trees.get(salt)
        if tree is None:
            tree = self._trees[salt] = SuffixTree(max_depth=self._max_depth)
            self._num_texts[salt] = self._tree_bytes[salt] = 0
        self._num_texts[salt] += 1
        return CachedText(salt, tree.add_text(num_prompt), num_prompt)

    def tree(self, text: CachedText) -> SuffixTree:
        """The tree that a text is in."""
        return self._trees[text.salt]

    def follow(self, text: CachedText, tokens: NDArray[np.int32]) -> bool:
        """Append what is new in a text; False, without a change, if it is another text."""
        return self._trees[text.salt].follow(text.number, tokens)

    def finish(self, text: CachedText) -> None:
        """End a text's growth; the oldest ones leave if there is not room for all."""
        self._trees[text.salt].finish(text.number)
        self._finished.append(text)
        self._measure(text.salt)
        self._make_room()

    def texts(self) -> Iterator[StoredText]:
        """Finished texts, the oldest first. Does not modify."""
        for text in self._finished:
            tokens = self._trees[text.salt].tokens(text.number)
            yield StoredText(text.salt, text.num_prompt, tokens)

    def put(self, stored: StoredText) -> None:
        """Add a finished text as the newest one."""
        text = self.begin(stored.salt, stored.num_prompt)
        self.follow(text, stored.tokens)
        self.finish(text)

    @property
    def num_finished(self) -> int:
        """Finished texts that are whole. Does not modify."""
        return len(self._finished)

    def check(self) -> None:
        """Raise if books and trees do not agree. Does not modify."""
        assert self._trees.keys() == self._num_texts.keys() == self._tree_bytes.keys()
        for tree in self._trees.values():
            tree.check()
        assert all(count > 0 for count in self._num_texts.values()), "an empty tree was kept"
        assert self.num_bytes == sum(self._tree_bytes.values())
        leaving = [] if self._leaving is None else [self._leaving]
        for text in (*self._finished, *leaving):
            self._trees[text.salt].tokens(text.number)

    def _make_room(self) -> None:
        """Take out old texts: all that are too many, and one portion of what is too large."""
        left = _REMOVED_AT_ONCE
        while self._is_over() and left > 0:
            if self._leaving is None:
                self._leaving = self._finished.popleft()
            text, tree = self._leaving, self._trees[self._leaving.salt]
            length = tree.length(text.number)
            if tree.remove(text.number, left):
                self._leaving = None
                self._forget(text.salt)
            self._measure(text.salt)
            left -= min(length, left)

    def _is_over(self) -> bool:
        if self._leaving is not None:
            return True
        if not self._finished:
            return False
        too_many = self._max_texts is not None and len(self._finished) > self._max_texts
        return too_many or self.num_bytes > self._max_bytes

    def _forget(self, salt: str) -> None:
        """A text has left a tree; an empty tree leaves too."""
        self._num_texts[salt] -= 1
        if self._num_texts[salt] == 0:
            self.num_bytes -= self._tree_bytes.pop(salt)
            del self._trees[salt], self._num_texts[salt]

    def _measure(self, salt: str) -> None:
        if salt in self._trees:
            now = self._trees[salt].num_bytes
            self.num_bytes += now - self._tree_bytes[salt]
            self._tree_bytes[salt] = now
