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
        self._ids = np.empty(max(2 * size, 16), np.int32)
        self._ids[:size] = prompt_ids
        self._counts = np.zeros(len(self._ids), np.int32)
        self._num_from_prompt = size
        self._index_of = {token: index for index, token in enumerate(prompt_ids.tolist())}
        self.num_tokens = num_prompt
        self.update(history)

    def update(self, history: NDArray[np.int32]) -> None:
        """Count the tokens behind those already counted; history only ever grows."""
        for token in history[self.num_tokens :].tolist():
            index = self._index_of.setdefault(token, len(self._index_of))
            if index == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[index] = token
            self._counts[index] += 1
        self.num_tokens = len(history)

    def with_path(self, path: Sequence[int]) -> CountEntries:
        """Counts as if the tokens of a draft path were output too. Does not modify."""
        size = len(self._index_of)
        new = [token for token in dict.fromkeys(path) if token not in self._index_of]
        index_of = {token: size + offset for offset, token in enumerate(new)}
        total = size + len(new)
        ids = np.empty(total, np.int32)
        ids[:size] = self._ids[:size]
        ids[size:] = new
        counts = np.zeros(total, np.int32)
        counts[:size] = self._counts[:size]
        for token in path:
            counts[self._index_of.get(token, index_of.get(token, -1))] += 1
        in_prompt = np.zeros(total, np.uint8)
        in_prompt[: self._num_from_prompt] = 1
        return CountEntries(ids, counts, in_prompt)
