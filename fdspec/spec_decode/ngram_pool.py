# SPDX-License-Identifier: Apache-2.0
"""NgramPool: n-grams of one sequence by their first token, those that were seen last.

Filled with the sequence's own text and with what lookahead decoding finds in its window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_TAIL = 32
"""Tokens by which a text is recognised that goes on."""


class Guess(NamedTuple):
    """What may follow a token.

    Attributes:
        tokens: level - 1 of them.
        is_text: True if they have followed it in the text.
    """

    tokens: tuple[int, ...]
    is_text: bool


class NgramPool:
    """For each token the last n-grams that begin with it, at most `guess_set_size` of them.

    Memory: some 150 bytes for each n-gram; a text of n tokens has at most n.
    """

    def __init__(self, level: int, guess_set_size: int) -> None:
        """Start empty.

        Args:
            level: N, the length of the n-grams, at least 2.
            guess_set_size: G, n-grams that are kept for each first token.
        """
        assert level >= 2 and guess_set_size >= 1, (level, guess_set_size)
        self._level = level
        self._guess_set_size = guess_set_size
        # The last n-gram comes last; the value says whether the text has it.
        self._ngrams: dict[int, dict[tuple[int, ...], bool]] = {}
        self._tail: list[int] = []
        self.num_followed = 0

    def follow(self, tokens: NDArray[np.int32]) -> None:
        """Take in what is new in a text.

        Args:
            tokens: [length] int32, all of the text. If it does not go on where the one before
                ended, the pool starts anew.
        """
        length, level = len(tokens), self._level
        first = self.num_followed - len(self._tail)
        if length < self.num_followed or tokens[first : self.num_followed].tolist() != self._tail:
            self._ngrams.clear()
            self.num_followed = 0
        if length > self.num_followed:
            # An n-gram is whole as soon as its last token is there.
            new = tokens[max(self.num_followed - level + 1, 0) :].tolist()
            for ngram in zip(*(new[start:] for start in range(level)), strict=False):
                self.add(ngram, is_text=True)
            self.num_followed = length
            self._tail = new[-_TAIL:] if len(new) >= _TAIL else tokens[-_TAIL:].tolist()

    def add(self, ngram: tuple[int, ...], *, is_text: bool) -> None:
        """Put an n-gram last; the first one leaves if there are too many with its first token."""
        ngrams = self._ngrams.get(ngram[0])
        if ngrams is None:
            self._ngrams[ngram[0]] = {ngram: is_text}
            return
        was_text = ngrams.pop(ngram, False)
        ngrams[ngram] = is_text or was_text
        if len(ngrams) > self._guess_set_size:
            del ngrams[next(iter(ngrams))]

    def guesses(self, token: int) -> Iterator[Guess]:
        """What may follow a token, the last n-gram first. Does not modify."""
        for ngram, is_text in reversed(self._ngrams.get(token, {}).items()):
            yield Guess(ngram[1:], is_text)
