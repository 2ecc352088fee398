# SPDX-License-Identifier: Apache-2.0
"""PredictionProposer: drafts from the text that a request expects its output to be like.

A draft is a function of the request and its tokens; what is kept is the prediction as an array.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.core import Draft, DraftContext, ModelOutput, SequenceId, StepPlan, Verdict
from fdspec.ops import prediction_draft

SOURCE = "prediction"


class PredictionProposer:
    """Predicted outputs. Implements `core.protocols.Proposer`."""

    def __init__(self, num_speculative_tokens: int) -> None:
        """Set the most tokens of a draft, at least 1."""
        assert num_speculative_tokens >= 1, num_speculative_tokens
        self._num_speculative_tokens = num_speculative_tokens
        self._predictions: dict[SequenceId, NDArray[np.int32]] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """A chain for each context whose output is like its prediction."""
        drafts = []
        for context in contexts:
            key = context.sequence_id
            if not context.params.prediction:
                continue
            if key not in self._predictions:
                self._predictions[key] = np.array(context.params.prediction, np.int32)
            tokens = prediction_draft(
                self._predictions[key],
                context.tokens[context.num_prompt :],
                max_draft=min(context.max_draft, self._num_speculative_tokens),
            )
            if len(tokens) > 0:
                drafts.append(Draft.chain(key, tokens, SOURCE))
        return drafts

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Nothing to learn."""

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop the predictions of ended sequences; unknown ids are ignored."""
        for sequence_id in sequence_ids:
            self._predictions.pop(sequence_id, None)
