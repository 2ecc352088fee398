# SPDX-License-Identifier: Apache-2.0
"""Flattens the rows of a drafting model's pass into the arrays that a step program takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.core.drafting import DraftShare
from fdspec.worker.batch import Batch, block_table_of, slots_of


def build_draft_batch(
    shares: Sequence[DraftShare], *, block_size: int, vocab_size: int, first_slot: int = 0
) -> Batch:
    """Arrays of a pass, in which the last row of whoever wants a token gets logits.

    Args:
        shares: at least one row each.
        block_size: tokens in a block.
        vocab_size: rows of the drafting model's embedding. A token that it does not know is
            computed as token 0: the target's vocabulary may be padded further.
        first_slot: where entries begin; no share starts before.
    """
    token_ids: list[NDArray[np.int32]] = []
    positions: list[int] = []
    slots: list[int] = []
    parents: list[int] = []
    logit_rows: list[int] = []
    row_splits, logit_splits = [0], [0]
    for share in shares:
        places = range(share.start, share.start + len(share.tokens))
        token_ids.append(share.tokens)
        positions += places
        slots += slots_of(share.block_ids, places, block_size)
        parents += range(-1, len(places) - 1)
        row_splits.append(len(positions))
        if share.wants_next:
            logit_rows.append(len(positions) - 1)
        logit_splits.append(len(logit_rows))
    tokens = np.concatenate(token_ids)
    return Batch(
        token_ids=np.where(tokens < vocab_size, tokens, 0).astype(np.int32, copy=False),
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int64),
        block_table=block_table_of([share.block_ids for share in shares]),
        row_splits=np.array(row_splits, np.int32),
        context_lens=np.array([share.start - first_slot for share in shares], np.int32),
        parents=np.array(parents, np.int32),
        logit_rows=np.array(logit_rows, np.int64),
        logit_splits=np.array(logit_splits, np.int64),
    )
