# SPDX-License-Identifier: Apache-2.0
"""Draft: tokens that a proposer guesses to follow a sequence; and what it gets to see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fdspec.core.request import SequenceId
from fdspec.core.sampling_params import SamplingParams

_PLAIN = SamplingParams()


class DraftContext(NamedTuple):
    """What a proposer may know of one sequence.

    Attributes:
        sequence_id: whose tokens these are.
        tokens: [length] int32, all committed tokens; read only.
        num_prompt: how many of them are prompt.
        max_draft: most draft tokens that can be used; 0 means none.
        params: of the request: which proposer it asks for, what it predicts.
        cache_salt: what is learned from a sequence is used for others of the same one only.
        max_probes: probes (see Draft) that may be added to max_draft tokens.
        block_ids: KV blocks of all tokens but the newest, and of that too where it needs no new
            one. Empty if nobody will verify the draft: a proposer that would have to run a model
            for it has none then.
    """

    sequence_id: SequenceId
    tokens: NDArray[np.int32]
    num_prompt: int
    max_draft: int
    params: SamplingParams = _PLAIN
    cache_salt: str = ""
    max_probes: int = 0
    block_ids: tuple[int, ...] = ()


def is_shadow(contexts: Sequence[DraftContext]) -> bool:
    """True if somebody only wants to see what would have been drafted."""
    return bool(contexts) and not any(context.block_ids for context in contexts)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A tree of draft tokens; a chain is the common case.

    Attributes:
        sequence_id: the sequence that it continues.
        tokens: [n] int32; a parent comes before its children.
        parents: [n] int32, index of the parent in this draft; -1 is the last committed token.
        source: name of the proposer, for metrics.
        sources: the same for each token where they come from several; None if all are of `source`.
        num_probes: how many tokens at the end are probes: verified like the others, but there for
            what the model says after them. They count as drafted only where they are accepted.
    """

    sequence_id: SequenceId
    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    source: str
    sources: tuple[str, ...] | None = None
    num_probes: int = 0

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

    @property
    def num_guesses(self) -> int:
        """Tokens before the probes."""
        return max(len(self.tokens) - self.num_probes, 0)

    def counted(self, kept: Sequence[int]) -> list[int]:
        """Indices of the tokens that count as drafted: guesses, and probes that were accepted.

        Args:
            kept: indices of the accepted tokens, in path order.
        """
        first_probe = self.num_guesses
        return [*range(first_probe), *(index for index in kept if index >= first_probe)]

    def cut(self, length: int) -> Draft:
        """The first `length` tokens; always a valid draft, because parents come first."""
        if length >= len(self):
            return self
        return Draft(
            self.sequence_id,
            self.tokens[:length],
            self.parents[:length],
            self.source,
            None if self.sources is None else self.sources[:length],
            max(self.num_probes - (len(self) - length), 0),
        )


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of each draft token; a child of the last committed token has depth 1.

    Args:
        parents: [n] index of each token's parent, which comes first; -1 is the last committed
            token.
    """
    result: list[int] = []
    for parent in parents:
        result.append(1 if parent < 0 else result[parent] + 1)
    return result


@cache
def _chain_parents(length: int) -> NDArray[np.int32]:
    """-1, 0, 1, ...; shared by all chains of this length."""
    parents = np.arange(-1, length - 1, dtype=np.int32)
    parents.flags.writeable = False
    return parents
