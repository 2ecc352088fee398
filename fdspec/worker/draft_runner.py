# SPDX-License-Identifier: Apache-2.0
"""DraftRunner: runs a drafting model over its own layers of the target's KV cache.

Owns the step program; never decides what to draft (the proposer does). Implements
`core.drafting.DraftModel`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.core.drafting import DraftOutput, DraftShare
from fdspec.kv.cache import ExtraLayers, KVCache
from fdspec.models.decoder import LlamaFamilyModel
from fdspec.ops import wake_threads
from fdspec.worker.batch import run_program
from fdspec.worker.draft_batch import build_draft_batch


def draft_model_layers(
    model: LlamaFamilyModel, *, dtype: str, num_scratch_blocks: int
) -> ExtraLayers:
    """What a whole model keeps in the blocks of another one's cache.

    Args:
        model: drafts.
        dtype: of the cache.
        num_scratch_blocks: blocks for draft tokens that cross the end of a sequence's blocks.
    """
    config = model.config
    return ExtraLayers(
        config.num_layers, 2, config.num_kv_heads, config.head_dim, dtype, num_scratch_blocks
    )


class DraftRunner:
    """Runs a whole model as the drafter.

    Args:
        model: drafts.
        cache: of the target.
        group: index of the drafter's layers among the cache's extra ones.
    """

    def __init__(self, model: LlamaFamilyModel, cache: KVCache, group: int) -> None:
        self._block_size = cache.layout.block_size
        self._vocab_size = model.config.vocab_size
        self._max_positions = model.max_model_len
        num_scratch = cache.layout.extra[group].num_scratch_blocks
        self._scratch_block_ids = range(cache.num_blocks, cache.num_blocks + num_scratch)
        self._program = model.lower(cache.extra[group])

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self._block_size

    @property
    def max_positions(self) -> int:
        """Rows must have smaller positions."""
        return self._max_positions

    @property
    def scratch_block_ids(self) -> range:
        """Blocks that belong to nobody."""
        return self._scratch_block_ids

    def run(
        self, shares: Sequence[DraftShare], hidden: NDArray[np.float32] | None = None
    ) -> DraftOutput:
        """See DraftModel.run; needs no hidden states and has none."""
        wake_threads()
        batch = build_draft_batch(shares, block_size=self._block_size, vocab_size=self._vocab_size)
        best_tokens = np.empty(len(batch.logit_rows), dtype=np.int32)
        run_program(self._program, batch, best_tokens)
        return DraftOutput(best_tokens)
