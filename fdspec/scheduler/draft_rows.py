# SPDX-License-Identifier: Apache-2.0
"""DraftRows: which sequences may be drafted for, and which rows of their drafts a step verifies.

Reserves blocks for the rows it grants; the batch scheduler owns the token budget and decides what
of it drafts may have.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fdspec.core import Draft, DraftContext, Request, SequenceId
from fdspec.scheduler.budget import fair_shares, usable_prefix
from fdspec.scheduler.residents import Residents


class DraftRows:
    """Limits and fair shares of draft rows.

    Drafts take free blocks only: they never cause a preemption, they are cut.
    """

    def __init__(
        self,
        residents: Residents,
        *,
        vocab_size: int,
        max_model_len: int,
        max_draft_rows: int,
        disable_drafts_at: int | None,
    ) -> None:
        """Start.

        Args:
            residents: the requests and their blocks.
            vocab_size: token ids 0 .. vocab_size - 1 exist.
            max_model_len: most tokens of a sequence, prompt and output together.
            max_draft_rows: most draft rows of a sequence in a step.
            disable_drafts_at: no drafts while at least so many sequences run; None is no limit.
        """
        self._residents = residents
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._max_draft_rows = max_draft_rows
        self._disable_drafts_at = disable_drafts_at

    def contexts(self, budget: int) -> list[DraftContext]:
        """Sequences that may use drafts in the next step, each up to `budget` rows.

        Does not modify.
        """
        if budget <= 0 or not self._may_draft():
            return []
        return [
            DraftContext(
                request.sequence_id,
                request.tokens.view(),
                request.num_prompt,
                min(limit, budget),
                request.params,
                request.cache_salt,
                block_ids=request.block_ids,
            )
            for request in self._residents.running
            if (limit := self._max_draft(request)) > 0
        ]

    def usable(
        self, drafts: Sequence[Draft], decoding: Collection[SequenceId]
    ) -> dict[SequenceId, Draft]:
        """The first draft of each decoding sequence, cut to what may be computed.

        Does not modify.
        """
        found: dict[SequenceId, Draft] = {}
        for draft in drafts if self._may_draft() else ():
            request = self._residents.get(draft.sequence_id)
            if request is None or draft.sequence_id not in decoding or draft.sequence_id in found:
                continue
            prefix = usable_prefix(draft, self._max_draft(request), self._vocab_size)
            if prefix is not None:
                found[draft.sequence_id] = prefix
        return found

    def grant(
        self, wanted: dict[SequenceId, Draft], budget: int, step: int
    ) -> dict[SequenceId, Draft]:
        """Fair shares of the budget, cut to the blocks that are free; whoever is first rotates."""
        drafts = list(wanted.values())
        if not drafts or budget <= 0:
            return {}
        first = step % len(drafts)
        shares = fair_shares([len(draft) for draft in drafts], budget, first)
        granted = {}
        for index in (*range(first, len(drafts)), *range(first)):
            request = self._residents.get(drafts[index].sequence_id)
            assert request is not None
            num_tokens = request.tokens.length
            num_slots = self._residents.reserve_free(request, num_tokens + shares[index])
            if num_slots > num_tokens:
                granted[request.sequence_id] = drafts[index].cut(num_slots - num_tokens)
        return granted

    def _may_draft(self) -> bool:
        """False if no sequence may use drafts in this step."""
        at = self._disable_drafts_at
        return self._max_draft_rows > 0 and (at is None or len(self._residents.running) < at)

    def _max_draft(self, request: Request) -> int:
        """Most draft tokens that could all be kept; the target always adds one of its own."""
        if not request.is_decoding:
            return 0
        params = request.params
        num_tokens = request.tokens.length
        wanted, most = params.max_draft_tokens, self._max_draft_rows
        assert params.max_tokens is not None
        return min(
            most if wanted is None else min(wanted, most),
            params.max_tokens - num_tokens + request.num_prompt - 1,
            self._max_model_len - num_tokens - 1,
        )
