# SPDX-License-Identifier: Apache-2.0
"""TokenCounts: how often each token occurs in one sequence, for the penalties.

Counts committed tokens only; what a draft adds is laid over a copy, row by row, so that a rejected
draft cannot leave a trace. Called by `row_params`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class CountEntries(NamedTuple):
    """Occurrences of tokens; each token once.

    Attributes:
        ids: [entries] int32, tokens that occur in the prompt or the output.
        output_counts: [entries] int32, occurrences in the output.
        in_prompt: [entries] uint8, 1 if the token occurs in the prompt.
    """

    ids: NDArray[np.int32]
    output_counts: NDArray[np.int32]
    in_prompt: NDArray[np.uint8]


NO_COUNTS = CountEntries(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8))


class TokenCounts:
    """Counts of one sequence, kept up with its growing history at O(new tokens)."""

    def __init__(self, history: NDArray[np.int32], num_prompt: int) -> None:
        """Count from nothing.

        Args:
            history: [length] int32, prompt then output.
            num_prompt: how many of them are prompt.
        """
        prompt_ids = np.unique(history[:num_prompt])
        size = len(prompt_ids)
        capacity = max(2 * size, 16)
        # Room for more than the tokens so far; entries in use come first.
        self._entries = CountEntries(
            np.zeros(capacity, np.int32), np.zeros(capacity, np.int32), np.zeros(capacity, np.uint8)
        )
        self._entries.ids[:size] = prompt_ids
        self._entries.in_prompt[:size] = 1
        # The same counts, one of which is several times quicker to change here than in an array.
        self._output_counts = self._entries.output_counts.data
        self._index_of = {token: index for index, token in enumerate(prompt_ids.tolist())}
        self.num_tokens = num_prompt
        self.update(history)

    def update(self, history: NDArray[np.int32]) -> None:
        """Count the tokens behind those already counted; history only ever grows."""
        for token in history[self.num_tokens :].tolist():
            index = self._index_of.get(token)
            if index is None:
                index = self._index_of[token] = len(self._index_of)
                if index == len(self._entries.ids):
                    self._entries = CountEntries(
                        *(np.concatenate([a, np.zeros_like(a)]) for a in self._entries)
                    )
                    self._output_counts = self._entries.output_counts.data
                self._entries.ids[index] = token
            self._output_counts[index] += 1
        self.num_tokens = len(history)

    def entries(self) -> CountEntries:
        """The counts; valid until the next update. Does not modify."""
        size = len(self._index_of)
        ids, output_counts, in_prompt = self._entries
        return CountEntries(ids[:size], output_counts[:size], in_prompt[:size])

    def with_path(self, path: Sequence[int]) -> CountEntries:
        """Counts as if the tokens of a draft path were output too. Does not modify."""
        new = [token for token in dict.fromkeys(path) if token not in self._index_of]
        known = self.entries()
        index_of = {token: len(known.ids) + offset for offset, token in enumerate(new)}
        counts = np.concatenate([known.output_counts, np.zeros(len(new), np.int32)])
        for token in path:
            counts[self._index_of.get(token, index_of.get(token, -1))] += 1
        return CountEntries(
            np.concatenate([known.ids, np.array(new, np.int32)]),
            counts,
            np.concatenate([known.in_prompt, np.zeros(len(new), np.uint8)]),
        )
