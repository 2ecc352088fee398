# SPDX-License-Identifier: Apache-2.0
"""Paths in draft trees, and the growing of one; a chain is the tree without branches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fdspec.core import Draft, SequenceId
from fdspec.core.draft import depths


def paths(draft: Draft) -> list[list[int]]:
    """For each draft token the tokens from the root of the tree down to it, itself included."""
    tokens: list[int] = draft.tokens.tolist()
    result: list[list[int]] = []
    for token, parent in zip(tokens, draft.parents.tolist(), strict=True):
        result.append([token] if parent < 0 else [*result[parent], token])
    return result


def deepest_guess(draft: Draft) -> int:
    """Depth of the deepest token that is no probe; 0 if there is none."""
    if draft.num_probes == 0 and draft.is_chain:
        return len(draft)
    return max(depths(draft.parents[: draft.num_guesses].tolist()), default=0)


def deepest_path(parents: Sequence[int]) -> list[int]:
    """Indices of the longest path, the first one if several are longest; in path order."""
    if not parents:
        return []
    levels = depths(parents)
    index = levels.index(max(levels))
    path = []
    while index >= 0:
        path.append(index)
        index = parents[index]
    return path[::-1]


class GrowingTree:
    """A draft tree in the making: equal tokens below the same parent are one row."""

    def __init__(self) -> None:
        """Start with nothing but the last committed token, row -1."""
        self._rows: dict[tuple[int, int], int] = {}  # (parent, token) -> row
        self.sources: list[str] = []

    @classmethod
    def of(cls, draft: Draft) -> GrowingTree:
        """The tree of a draft, whose rows keep their numbers unless equal ones are siblings."""
        tree = cls()
        pairs = zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)
        tree._rows = {edge: row for row, edge in enumerate(pairs)}
        tree.sources = [draft.source] * len(draft)
        return tree

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, parent: int, token: int) -> int | None:
        """The row of a token below a parent, None if there is none. Does not modify."""
        return self._rows.get((parent, token))

    def add(self, parent: int, token: int, source: str) -> int:
        """The row of a token below a parent, which is added if it is not there."""
        row = self._rows.setdefault((parent, token), len(self._rows))
        if row == len(self.sources):
            self.sources.append(source)
        return row

    def draft(self, key: SequenceId, source: str, num_probes: int = 0) -> Draft:
        """The tree as a draft.

        Args:
            key: the sequence that it continues.
            source: its source as a whole.
            num_probes: how many of the rows that were added last are probes.
        """
        if not self._rows:
            return Draft.chain(key, [], source)
        parents, tokens = (np.array(part, np.int32) for part in zip(*self._rows, strict=True))
        sources = set(self.sources)
        if len(sources) == 1:
            return Draft(key, tokens, parents, sources.pop(), None, num_probes)
        return Draft(key, tokens, parents, source, tuple(self.sources), num_probes)
