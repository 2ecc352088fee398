# SPDX-License-Identifier: Apache-2.0
"""JacobiWindow: guesses about the next tokens that the model corrects a little in every step.

The window of lookahead decoding (Fu et al., arXiv 2402.02057), as branches of a draft tree. Knows
neither proposers nor plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fdspec.spec_decode.draft_tree import GrowingTree


class JacobiWindow:
    """Levels 0 .. N - 2 of columns 0 .. W - 1.

    Cell (r, c) guesses the token at position p + r + c, p being that of the last committed token,
    which is cell (0, 0) itself. It follows cells (0, 0) .. (0, c), (1, c) .. (r - 1, c): level 0 is
    a chain, and column c hangs from its cell c. What the model says after the cells of the last
    level ends N-grams, and becomes the last level of the next step; the first level leaves.

    At the start there is one level of random tokens, and each step adds one of what the model said.
    """

    def __init__(self, level: int, width: int, fill: Callable[[], int]) -> None:
        """Start with one level.

        Args:
            level: N, at least 3.
            width: W, at least 1.
            fill: gives any token of the text.
        """
        assert level >= 3 and width >= 1, (level, width)
        self._num_levels = level - 1
        self._fill = fill
        # Cell (0, 0) of these is never read.
        self._levels = [[fill() for _ in range(width)]]

    @property
    def width(self) -> int:
        """Columns that there are."""
        return len(self._levels[0])

    def grow_into(self, tree: GrowingTree, max_rows: int, width: int, source: str) -> None:
        """Add the first columns to a tree, as many as have room. Does not modify the window.

        Args:
            tree: it may have rows already; those that are equal are shared.
            max_rows: most rows of the tree.
            width: most columns.
            source: of the rows that are added.
        """
        top = -1
        for column in range(min(width, self.width)):
            # One less for column 0, whose first cell is the last committed token.
            if len(tree) + len(self._levels) - (column == 0) > max_rows:
                return
            if column > 0:
                top = tree.add(top, self._levels[0][column], source)
            row = top
            for level in self._levels[1:]:
                row = tree.add(row, level[column], source)

    def last_level_rows(self, tree: GrowingTree) -> list[int]:
        """Rows of a tree that are the cells of the last level, column by column.

        Args:
            tree: what was computed; columns count up to the first that is not all there.
        """
        rows: list[int] = []
        top: int | None = -1
        for column in range(self.width):
            if column > 0:
                top = None if top is None else tree.find(top, self._levels[0][column])
            row = top
            for level in self._levels[1:]:
                row = None if row is None else tree.find(row, level[column])
            if top is None or row is None:
                break
            rows.append(row)
        return rows

    def advance(
        self, last_token: int, said: Sequence[int], stops: frozenset[int]
    ) -> list[tuple[int, ...]]:
        """Go on by one step; returns the N-grams that it completed, each a token and N - 1 more.

        Args:
            last_token: cell (0, 0) of the step.
            said: what the model says after the last level's cells, for the first columns; columns
                beyond stay as they are.
            stops: tokens that end a text. Where the window had one, what follows it would be about
                another text, so a token of this one takes its place.
        """
        kept = [self._fill() if token in stops else token for token in said]
        levels = self._levels
        if len(levels) < self._num_levels:
            added = [*kept[1:], *(self._fill() for _ in range(self.width - max(len(kept) - 1, 0)))]
            self._levels = [[*level[1:], self._fill()] for level in levels]
            self._levels.append(added)
            return []
        ngrams = []
        for column, token in enumerate(said):
            first = last_token if column == 0 else levels[0][column]
            ngrams.append((first, *(level[column] for level in levels[1:]), token))
            for upper, lower in zip(levels, levels[1:], strict=False):
                upper[column] = lower[column]
            levels[-1][column] = kept[column]
        return ngrams

    def skip(self, count: int) -> None:
        """Drop columns on the left, for committed tokens beyond the first of a step.

        What is missing on the right is taken from the level below, as long as there is one: the
        last cells of all levels guess neighbouring positions.
        """
        for _ in range(count):
            lasts = [*(level[-1] for level in self._levels[1:]), self._fill()]
            for level, last in zip(self._levels, lasts, strict=True):
                del level[0]
                level.append(last)

    def widen(self, width: int) -> None:
        """Add a column of random tokens if there are fewer than `width`."""
        if self.width < width:
            for level in self._levels:
                level.append(self._fill())
