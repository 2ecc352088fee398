# SPDX-License-Identifier: Apache-2.0
"""Paths in draft trees. Pure functions; a chain is the tree without branches."""

from __future__ import annotations

from collections.abc import Sequence

from fdspec.core import Draft
from fdspec.core.draft import depths


def paths(draft: Draft) -> list[list[int]]:
    """For each draft token the tokens from the root of the tree down to it, itself included."""
    tokens: list[int] = draft.tokens.tolist()
    result: list[list[int]] = []
    for token, parent in zip(tokens, draft.parents.tolist(), strict=True):
        result.append([token] if parent < 0 else [*result[parent], token])
    return result


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
