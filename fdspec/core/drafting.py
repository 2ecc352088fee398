# SPDX-License-Identifier: Apache-2.0
"""What a proposer and the model that drafts for it tell each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class DraftShare(NamedTuple):
    """One sequence's rows in a forward pass of a drafting model.

    Row i has token tokens[i], position start + i, and its entry goes to that slot.

    Attributes:
        start: slot of the first row; the entries of all slots before it are there.
        tokens: [rows] int32, at least one.
        block_ids: blocks for slots 0 .. start + rows - 1, scratch blocks among the last of them.
        wants_next: True if the token that follows the last row is wanted.
    """

    start: int
    tokens: NDArray[np.int32]
    block_ids: tuple[int, ...]
    wants_next: bool


class DraftOutput(NamedTuple):
    """What a drafting model says.

    Attributes:
        tokens: [shares that want one] int32, the most likely next tokens, ids of the target.
        hidden: [the same, hidden size] float32, the model's own state behind these rows; None if
            it does not work on hidden states.
    """

    tokens: NDArray[np.int32]
    hidden: NDArray[np.float32] | None = None


class DraftModel(Protocol):
    """A model that drafts, with entries of its own in the blocks of the target's KV cache."""

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        ...

    @property
    def max_positions(self) -> int:
        """Rows must have smaller positions."""
        ...

    @property
    def scratch_block_ids(self) -> range:
        """Blocks that belong to nobody; what is in them is lost with the next draft."""
        ...

    def run(
        self, shares: Sequence[DraftShare], hidden: NDArray[np.float32] | None = None
    ) -> DraftOutput:
        """Compute rows and write their entries.

        Args:
            shares: of several sequences; in a later share rows see those of an earlier one.
            hidden: [shares, hidden size], the state behind the token of each, which then has one
                row; None takes what the target left in the cache.
        """
        ...
