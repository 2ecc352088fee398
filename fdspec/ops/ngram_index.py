# SPDX-License-Identifier: Apache-2.0
"""NgramIndex: the n-grams of one growing sequence, looked up at a cost that does not grow with it.

Its drafts are those of `ngram_match`, which is its reference. Kept by the n-gram proposer.
"""

from __future__ import annotations

from typing import Any

from fdspec.ops.arrays import Array
from fdspec.ops.dispatch import kernels


class NgramIndex:
    """Where each n-gram of a sequence ended, for every size from min_ngram to max_ngram.

    Following a token takes a hash look-up for each size, drafting one for each size and at most
    max_draft steps for the size that matches. Memory: about 12 bytes for each token and size.
    """

    def __init__(self, *, max_ngram: int, min_ngram: int) -> None:
        """Start empty.

        Args:
            max_ngram: longest n-gram that is looked up.
            min_ngram: shortest one, at least 1.

        Raises:
            ValueError: the sizes are out of order.
        """
        self._index: Any = kernels().NgramIndex(max_ngram, min_ngram)

    def follow(self, tokens: Array) -> None:
        """Index what is new in a sequence.

        Args:
            tokens: [length] int32, all of the sequence. If it does not go on where the one before
                ended, the index starts anew.
        """
        self._index.follow(tokens)

    def draft(self, max_draft: int) -> Array:
        """Draft what followed the latest n-gram before; see `ngram_match`. Does not modify.

        Args:
            max_draft: length of the draft; 0 or less drafts nothing.

        Returns:
            [max_draft] int32, or [0] without a match.
        """
        return self._index.draft(max_draft)

    @property
    def length(self) -> int:
        """Tokens followed so far."""
        return int(self._index.length)

    @property
    def num_bytes(self) -> int:
        """Memory in use."""
        return int(self._index.num_bytes)

    def check(self) -> None:
        """Raise RuntimeError if a table misses an n-gram. Does not modify."""
        self._index.check()
