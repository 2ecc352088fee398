# SPDX-License-Identifier: Apache-2.0
"""Draft: tokens that a proposer guesses to follow a sequence; and what it gets to see."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdspec.core.request import SequenceId


class DraftContext(NamedTuple):
    """What a proposer may know of one sequence.

    Attributes:
        sequence_id: whose tokens these are.
        tokens: [length] int32, all committed tokens; read only.
        num_prompt: how many of them are prompt.
        max_draft: most draft tokens that can be used; 0 means none.
    """

    sequence_id: SequenceId
    tokens: NDArray[np.int32]
    num_prompt: int
    max_draft: int


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A tree of draft tokens; a chain is the common case.

    Attributes:
        sequence_id: the sequence that it continues.
        tokens: [n] int32; a parent comes before its children.
        parents: [n] int32, index of the parent in this draft; -1 is the last committed token.
        source: name of the proposer, for metrics.
    """

    sequence_id: SequenceId
    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    source: str

    @classmethod
    def chain(
        cls, sequence_id: SequenceId, tokens: list[int] | NDArray[np.int32], source: str
    ) -> Draft:
        """A draft in which every token follows the one before it."""
        ids = np.asarray(tokens, dtype=np.int32)
        return cls(sequence_id, ids, _chain_parents(len(ids)), source)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """True if every token's parent is the one before it."""
        return bool(np.array_equal(self.parents, np.arange(-1, len(self) - 1)))

    def cut(self, length: int) -> Draft:
        """The first `length` tokens; always a valid draft, because parents come first."""
        if length >= len(self):
            return self
        return Draft(self.sequence_id, self.tokens[:length], self.parents[:length], self.source)


@cache
def _chain_parents(length: int) -> NDArray[np.int32]:
    """-1, 0, 1, ...; shared by all chains of this length."""
    parents = np.arange(-1, length - 1, dtype=np.int32)
    parents.flags.writeable = False
    return parents
