# SPDX-License-Identifier: Apache-2.0
"""NaiveProposer: drafts nothing, so that every step is plain decoding. Holds no state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fdspec.core import Draft, DraftContext, ModelOutput, SequenceId, StepPlan, Verdict


class NaiveProposer:
    """The baseline. Implements `core.protocols.Proposer`."""

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """No drafts. Does not modify."""
        return []

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Nothing to learn."""

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Nothing to forget."""
