# SPDX-License-Identifier: Apache-2.0
"""HeadRunner: runs a draft head over the target's hidden states in the cache.

The row of slot s reads the token of slot s and the hidden state of slot s - 1, so that its entry
depends on the tokens up to s only, like the target's. Slot 0 has no state before it, and no entry.
Owns the step program; never decides what to draft. Implements `core.drafting.DraftModel`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.core.drafting import DraftOutput, DraftShare
from fdspec.kv.cache import ExtraLayers, KVCache
from fdspec.models.draft_head import DraftHead
from fdspec.ops import wake_threads
from fdspec.utils.bfloat16 import from_bfloat16
from fdspec.worker.batch import run_program, slots_of
from fdspec.worker.draft_batch import build_draft_batch

FIRST_SLOT = 1


def draft_head_layers(
    head: DraftHead, *, dtype: str, num_scratch_blocks: int
) -> tuple[ExtraLayers, ExtraLayers]:
    """What a head needs in the blocks of the target's cache: hidden states, then its own layer.

    Args:
        head: drafts.
        dtype: of the cache.
        num_scratch_blocks: blocks for draft tokens that cross the end of a sequence's blocks.
    """
    states = ExtraLayers(len(head.taps), 1, 1, head.hidden_size, "bfloat16", taps=head.taps)
    own = ExtraLayers(1, 2, head.num_kv_heads, head.head_dim, dtype, num_scratch_blocks)
    return states, own


class HeadRunner:
    """Runs a draft head.

    Args:
        head: drafts.
        cache: of the target.
        group: index of the head's hidden states among the cache's extra layers; its own layer is
            the next group.
    """

    def __init__(self, head: DraftHead, cache: KVCache, group: int) -> None:
        self._head = head
        self._block_size = cache.layout.block_size
        num_scratch = cache.layout.extra[group + 1].num_scratch_blocks
        self._scratch_block_ids = range(cache.num_blocks, cache.num_blocks + num_scratch)
        self._states = [array.reshape(-1, head.hidden_size) for (array,) in cache.extra[group]]
        self._program = head.lower(cache.extra[group + 1][0])

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self._block_size

    @property
    def max_positions(self) -> int:
        """Rows must have smaller positions."""
        return self._head.max_positions

    @property
    def scratch_block_ids(self) -> range:
        """Blocks that belong to nobody."""
        return self._scratch_block_ids

    def run(
        self, shares: Sequence[DraftShare], hidden: NDArray[np.float32] | None = None
    ) -> DraftOutput:
        """See DraftModel.run."""
        shares = [share for given in shares if len((share := _with_entries(given)).tokens)]
        if not shares:
            return DraftOutput(np.empty(0, np.int32))
        wake_threads()
        head = self._head
        batch = build_draft_batch(
            shares,
            block_size=self._block_size,
            vocab_size=head.vocab_size,
            first_slot=FIRST_SLOT,
        )
        best_tokens = np.empty(len(batch.logit_rows), dtype=np.int32)
        outputs = np.empty((len(batch.logit_rows), head.hidden_size), dtype=np.float32)
        run_program(
            self._program,
            batch,
            best_tokens,
            hidden=self._target_state(shares) if hidden is None else hidden,
            hidden_out=outputs,
        )
        if head.draft_token_ids is not None:
            best_tokens = head.draft_token_ids[best_tokens]
        return DraftOutput(best_tokens, head.own_state(outputs))

    def _target_state(self, shares: Sequence[DraftShare]) -> NDArray[np.float32]:
        """What the target left behind the token before each row."""
        slots: list[int] = []
        for share in shares:
            before = range(share.start - 1, share.start - 1 + len(share.tokens))
            slots += slots_of(share.block_ids, before, self._block_size)
        return self._head.target_state([from_bfloat16(states[slots]) for states in self._states])


def _with_entries(share: DraftShare) -> DraftShare:
    """Without the row of slot 0."""
    if share.start >= FIRST_SLOT:
        return share
    return share._replace(start=FIRST_SLOT, tokens=share.tokens[FIRST_SLOT:])
