# SPDX-License-Identifier: Apache-2.0
"""DraftHead: a small network that drafts from the hidden states of another model.

It computes one row for each token x[s] but the first, from x[s] and the state behind x[s - 1]:
first from the target's own states, which the model runner keeps in the cache, then, for draft
tokens, from the state that it made itself a row before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fdspec.ops import StepProgram

Floats = NDArray[np.float32]


class DraftHead(Protocol):
    """What the runner of a head needs to know of it.

    Attributes:
        taps: numbers of layers of the target behind which its hidden states are wanted.
        hidden_size: width of a state, of the target and of the head.
        num_kv_heads, head_dim: of its attention, which has one layer.
        vocab_size: tokens that it can read.
        max_positions: its rows have smaller positions.
        draft_token_ids: [drafted tokens] int32, the ids that it chooses from; None for all.
    """

    taps: tuple[int, ...]
    hidden_size: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    draft_token_ids: NDArray[np.int32] | None

    @property
    def weight_bytes(self) -> int:
        """Memory of its own weights."""
        ...

    def target_state(self, taps: Sequence[Floats]) -> Floats:
        """[rows, hidden_size], what the head reads, of the target's states [rows, hidden_size]."""
        ...

    def own_state(self, outputs: Floats) -> Floats:
        """The same of its own outputs before the final norm, [rows, hidden_size]."""
        ...

    def lower(self, cache: Sequence[Any]) -> StepProgram:
        """Token ids and states to the logits of draft_token_ids for selected rows.

        Args:
            cache: keys and values of its layer.
        """
        ...
