# SPDX-License-Identifier: Apache-2.0
"""NgramProposer: drafts what followed the latest tokens earlier in the prompt or the output.

A draft is a function of the sequence's own tokens, so there is no state, nothing to warm up, and
nothing that one request could learn about another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from fdspec.core import Draft, DraftContext, ModelOutput, SequenceId, StepPlan, Verdict
from fdspec.ops import ngram_match

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

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """A chain for each context with a match. Does not modify."""
        if not contexts:
            return []
        histories = [context.tokens for context in contexts]
        most = self._num_speculative_tokens
        drafts, splits = ngram_match(
            # At batch 1 the history is passed on as it is; a long one is not copied at every step.
            histories[0] if len(histories) == 1 else np.concatenate(histories),
            np.array([0, *accumulate(map(len, histories))]),
            np.array([min(context.max_draft, most) for context in contexts], np.int32),
            max_ngram=self._max_ngram_size,
            min_ngram=self._min_ngram_size,
        )
        ends = splits.tolist()
        return [
            Draft.chain(context.sequence_id, drafts[start:end], SOURCE)
            for context, start, end in zip(contexts, ends[:-1], ends[1:], strict=True)
            if end > start
        ]

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Nothing to learn: the sequence itself is the memory."""

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Nothing to forget."""
