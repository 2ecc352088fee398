# SPDX-License-Identifier: Apache-2.0
"""A model that drafts together with n-gram matches: behind them, or where there are none.

Where n-grams match they are right for long, and cost no pass; a model always has something to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from fdspec.core import Draft, DraftContext, ModelOutput, SequenceId, StepPlan, Verdict
from fdspec.core.draft import is_shadow
from fdspec.ops import ngram_match
from fdspec.spec_decode.model_proposer import ModelProposer
from fdspec.spec_decode.ngram import SOURCE as NGRAM
from fdspec.spec_decode.ngram import NgramProposer


class NgramFirst:
    """Matches where there are any, else the model. Implements `core.protocols.Proposer`."""

    def __init__(self, model: ModelProposer, ngram: NgramProposer) -> None:
        self._model = model
        self._ngram = ngram

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """A chain of one of them for each context."""
        matches = self._ngram.propose(contexts)
        if is_shadow(contexts):
            return matches
        matched = {draft.sequence_id for draft in matches}
        # The model catches up with all of them, whoever drafts.
        rest = [context for context in contexts if context.sequence_id not in matched]
        return matches + self._model.propose(rest)

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Both learn."""
        self._model.observe(plan, output, verdicts)
        self._ngram.observe(plan, output, verdicts)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Both forget."""
        gone = list(sequence_ids)
        self._model.forget(gone)
        self._ngram.forget(gone)


class WithNgram:
    """The model's chain, then what followed its end earlier. Implements `core.protocols.Proposer`.

    The tokens behind the model's chain are copied from where its last ones occurred before.
    """

    def __init__(
        self,
        model: ModelProposer,
        num_speculative_tokens: int,
        *,
        max_ngram_size: int,
        min_ngram_size: int,
    ) -> None:
        """Combine.

        Args:
            model: drafts first.
            num_speculative_tokens: most tokens of both together.
            max_ngram_size, min_ngram_size: lengths of the runs that are looked up.
        """
        self._model = model
        self._num_speculative_tokens = num_speculative_tokens
        self._sizes = (max_ngram_size, min_ngram_size)

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """A chain for each context."""
        by_id = {context.sequence_id: context for context in contexts}
        return [
            self._extended(draft, by_id[draft.sequence_id])
            for draft in self._model.propose(contexts)
        ]

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """The model learns; matches need no state."""
        self._model.observe(plan, output, verdicts)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """The model forgets."""
        self._model.forget(sequence_ids)

    def _extended(self, draft: Draft, context: DraftContext) -> Draft:
        room = min(context.max_draft, self._num_speculative_tokens) - len(draft)
        if room <= 0:
            return draft
        tokens = np.concatenate([context.tokens, draft.tokens])
        largest, smallest = self._sizes
        more, _ = ngram_match(
            tokens,
            np.array([0, len(tokens)], np.int64),
            np.array([room], np.int32),
            max_ngram=largest,
            min_ngram=smallest,
        )
        if not len(more):
            return draft
        chain = Draft.chain(context.sequence_id, np.concatenate([draft.tokens, more]), draft.source)
        return replace(chain, sources=(draft.source,) * len(draft) + (NGRAM,) * len(more))
