# SPDX-License-Identifier: Apache-2.0
"""NgramProposer: drafts what followed the latest tokens earlier in the prompt or the output.

A draft is a function of the sequence's own tokens, so there is nothing to warm up and nothing that
one request could learn about another. The index kept for each sequence only saves time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fdspec.core import Draft, DraftContext, ModelOutput, SequenceId, StepPlan, Verdict
from fdspec.ops import NgramIndex

SOURCE = "ngram"


class NgramProposer:
    """Prompt lookup, longest n-gram first. Implements `core.protocols.Proposer`."""

    def __init__(
        self, num_speculative_tokens: int, *, max_ngram_size: int = 5, min_ngram_size: int = 2
    ) -> None:
        """Set the limits.

        Args:
            num_speculative_tokens: most tokens of a draft, at least 1.
            max_ngram_size: longest n-gram that is looked up; it is tried first.
            min_ngram_size: shortest one.
        """
        assert num_speculative_tokens >= 1, num_speculative_tokens
        assert 1 <= min_ngram_size <= max_ngram_size, (min_ngram_size, max_ngram_size)
        self._num_speculative_tokens = num_speculative_tokens
        self._max_ngram_size = max_ngram_size
        self._min_ngram_size = min_ngram_size
        self._indexes: dict[SequenceId, NgramIndex] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """A chain for each context with a match."""
        drafts = []
        for context in contexts:
            index = self._index(context.sequence_id)
            index.follow(context.tokens)
            tokens = index.draft(min(context.max_draft, self._num_speculative_tokens))
            if len(tokens) > 0:
                drafts.append(Draft.chain(context.sequence_id, tokens, SOURCE))
        return drafts

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Index prompts chunk by chunk; what comes later is indexed when it is drafted from."""
        for sequence in plan.sequences:
            if sequence.params.max_draft_tokens != 0 and sequence.start < sequence.num_prompt:
                index = self._index(sequence.sequence_id)
                if len(sequence.history) > index.length:
                    index.follow(sequence.history)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop the indexes of ended sequences; unknown ids are ignored."""
        for sequence_id in sequence_ids:
            self._indexes.pop(sequence_id, None)

    def _index(self, sequence_id: SequenceId) -> NgramIndex:
        index = self._indexes.get(sequence_id)
        if index is None:
            index = NgramIndex(max_ngram=self._max_ngram_size, min_ngram=self._min_ngram_size)
            self._indexes[sequence_id] = index
        return index
