# SPDX-License-Identifier: Apache-2.0
"""SuffixTree: what followed which tokens, and how often, in texts that grow and leave.

The one structure behind suffix and memory decoding. Published as suffix decoding (Oliaro et al.,
arXiv 2411.04975) and as lookahead with a trie (Zhao et al., arXiv 2312.12728).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdspec.ops.arrays import Array
from fdspec.ops.dispatch import kernels

MAX_BRANCHES = 64
"""Of a node with more children a tree takes the most frequent one only."""


class TreeDraft(NamedTuple):
    """A draft and what its tree expects of it.

    Attributes:
        tokens: [n] int32; a parent comes before its children.
        parents: [n] int32, -1 for children of the text's last token.
        score: expected number of accepted tokens, by the tree's frequencies.
        match_length: how many last tokens of the text occur elsewhere with a continuation: for a
            chain those that it follows, for a tree the most that count.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    score: float
    match_length: int


class SuffixTree:
    """All substrings of up to max_depth tokens of several texts, with their frequencies.

    Every position of a text counts once for each substring that starts there, prompt_weight times
    if it lies in the text's prompt. The probability of a token after a substring is its share of
    the frequencies of all tokens that follow the substring.

    Following a token costs up to max_depth steps (about a microsecond at 24), a draft a few for
    each of its tokens, whatever the texts' lengths. At most two nodes for each token.
    """

    def __init__(self, *, max_depth: int, prompt_weight: int = 1) -> None:
        """Start empty.

        Args:
            max_depth: longest substring; a match and the draft after it fit in together.
            prompt_weight: see above, at least 1.

        Raises:
            ValueError: a number is out of range.
        """
        self._tree: Any = kernels().SuffixTree(max_depth, prompt_weight)

    def add_text(self, num_prompt: int = 0) -> int:
        """Begin a text whose first num_prompt tokens are a prompt; returns its number."""
        return int(self._tree.add_text(num_prompt))

    def follow(self, text: int, tokens: Array) -> bool:
        """Append what is new in a growing text.

        Args:
            text: its number.
            tokens: [length] int32, all of it.

        Returns:
            False if it does not go on where it ended before; then nothing has changed.
        """
        return bool(self._tree.follow(text, tokens))

    def finish(self, text: int) -> None:
        """End a text's growth; it stays in the tree."""
        self._tree.finish(text)

    def remove(self, text: int, limit: int) -> bool:
        """Take out the next `limit` positions of a finished text; True when none is left.

        Its number is not valid after that.
        """
        return bool(self._tree.remove(text, limit))

    def draft_chain(
        self, text: int, max_tokens: int, *, factor: float, min_probability: float
    ) -> TreeDraft:
        """The chain that most is expected of, after a growing text. Does not modify.

        For each match length m, as long as the last m tokens have a continuation: the most frequent
        tokens (ties by the lower id), up to min(max_tokens, factor * m), while the path's
        probability is at least min_probability. Its score is the sum of the path's probabilities.
        The best score wins, ties by the longer match.
        """
        return TreeDraft(*self._tree.draft_chain(text, max_tokens, factor, min_probability))

    def draft_tree(self, text: int, max_tokens: int, *, min_probability: float) -> TreeDraft:
        """The most probable paths after a growing text, merged into a tree. Does not modify.

        The longest match of at most max_depth - max_tokens tokens (and at least one) counts, so
        that a whole path fits in after it. That a match of m tokens leads to a path of
        d tokens is believed with m / (m + d), times the share of each branch taken; what is left of
        the first token goes to the match of m - 1. Paths come in the order of their probability
        (ties: longer match, earlier parent, lower id) until there are max_tokens or it is below
        min_probability.
        """
        return TreeDraft(*self._tree.draft_tree(text, max_tokens, min_probability))

    def length(self, text: int) -> int:
        """Tokens of a text. Does not modify."""
        return int(self._tree.length(text))

    def tokens(self, text: int) -> NDArray[np.int32]:
        """A text, as a copy. Does not modify."""
        tokens: NDArray[np.int32] = self._tree.tokens(text)
        return tokens

    @property
    def num_nodes(self) -> int:
        """Nodes in use."""
        return int(self._tree.num_nodes)

    @property
    def num_bytes(self) -> int:
        """Memory of nodes, edges and texts in use; what vectors hold in reserve is not counted."""
        return int(self._tree.num_bytes)

    def check(self) -> None:
        """Raise RuntimeError if nodes, edges and texts do not agree. Does not modify."""
        self._tree.check()


@dataclass
class _Text:
    tokens: list[int]
    num_prompt: int
    num_removed: int = 0


class ReferenceSuffixTree:
    """SuffixTree from its definition: it counts substrings anew whenever it is asked."""

    def __init__(self, *, max_depth: int, prompt_weight: int = 1) -> None:
        self._max_depth = max_depth
        self._prompt_weight = prompt_weight
        self._texts: dict[int, _Text] = {}

    def set_text(self, text: int, tokens: list[int], num_prompt: int, num_removed: int = 0) -> None:
        """Put a text in, or another state of it."""
        self._texts[text] = _Text(tokens, num_prompt, num_removed)

    def drop_text(self, text: int) -> None:
        """Take a text out."""
        del self._texts[text]

    def draft_chain(
        self, text: int, max_tokens: int, *, factor: float, min_probability: float
    ) -> TreeDraft:
        """See SuffixTree.draft_chain."""
        tokens = self._texts[text].tokens
        best: list[int] = []
        best_score, best_match = 0.0, 0
        for match in range(1, min(self._max_depth, len(tokens)) + 1):
            context = tokens[len(tokens) - match :]
            if not self._followers(context):
                break
            chain: list[int] = []
            probability, score = 1.0, 0.0
            while len(chain) < min(max_tokens, int(factor * match + 1e-6)):
                followers = self._followers(context + chain)
                if not followers:
                    break
                token = min(followers, key=lambda t: (-followers[t], t))
                probability *= followers[token] / sum(followers.values())
                if probability < min_probability:
                    break
                chain.append(token)
                score += probability
            if chain and score >= best_score - 1e-12:
                best, best_score, best_match = chain, score, match
        return _as_draft(best, list(range(-1, len(best) - 1)), best_score, best_match)

    def draft_tree(self, text: int, max_tokens: int, *, min_probability: float) -> TreeDraft:
        """See SuffixTree.draft_tree."""
        if max_tokens <= 0:
            return _as_draft([], [], 0.0, 0)
        tokens = self._texts[text].tokens
        most = min(max(self._max_depth - max_tokens, 1), len(tokens))
        contexts = [tokens[len(tokens) - m :] for m in range(1, most + 1)]
        longest = max((len(c) for c in contexts if self._followers(c)), default=0)
        # (-probability, -match, parent, token, weight, string that the path follows)
        open_paths: list[tuple[float, int, int, int, float, list[int]]] = []

        def open_children(context: list[int], weight: float, match: int, parent: int) -> None:
            followers = self._followers(context)
            if len(followers) > MAX_BRANCHES:
                best = min(followers, key=lambda t: (-followers[t], t))
                total = sum(followers.values())
                shares = {best: followers[best] / total}
            else:
                shares = {t: f / sum(followers.values()) for t, f in followers.items()}
            for token, share in shares.items():
                probability = weight * share * match / len([*context, token])
                if probability >= min_probability:
                    path = (-probability, -match, parent, token, weight * share, context)
                    open_paths.append(path)

        left = 1.0
        for match in range(longest, 0, -1):
            if left < min_probability:
                break
            open_children(contexts[match - 1], left, match, -1)
            left /= match + 1
        rows: list[tuple[int, int]] = []
        score = 0.0
        while open_paths:
            path = min(open_paths)
            open_paths.remove(path)
            negative, negative_match, parent, token, weight, context = path
            if (parent, token) not in rows:
                if len(rows) >= max_tokens:
                    break
                rows.append((parent, token))
                score -= negative
            row = rows.index((parent, token))
            open_children([*context, token], weight, -negative_match, row)
        return _as_draft([t for _, t in rows], [p for p, _ in rows], score, longest)

    def _followers(self, context: list[int]) -> dict[int, int]:
        """Frequency of each token that follows a string."""
        size = len(context)
        found: dict[int, int] = {}
        if size >= self._max_depth:
            return found
        for text in self._texts.values():
            for start in range(text.num_removed, len(text.tokens) - size):
                if text.tokens[start : start + size] == context:
                    token = text.tokens[start + size]
                    weight = self._prompt_weight if start < text.num_prompt else 1
                    found[token] = found.get(token, 0) + weight
        return found


def _as_draft(tokens: list[int], parents: list[int], score: float, match: int) -> TreeDraft:
    return TreeDraft(np.array(tokens, np.int32), np.array(parents, np.int32), score, match)
