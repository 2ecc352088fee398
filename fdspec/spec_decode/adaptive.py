# SPDX-License-Identifier: Apache-2.0
"""AdaptiveProposer: gives each sequence the draft length that pays, down to none.

Wraps a proposer that needs no model. Its decisions depend on past verdicts and on the number of
drafting sequences only, never on a clock, so that replicas which see the same events agree. They
change how fast tokens come, never which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fdspec.core import (
    Draft,
    DraftContext,
    ModelOutput,
    SequenceId,
    SequencePlan,
    StepPlan,
    Verdict,
)
from fdspec.core.protocols import Proposer
from fdspec.spec_decode.draft_tree import depths

SEQUENCE_COST = 0.32
ROW_COST = 0.15
"""What one more sequence, and one more draft row, add to a decode step, as a share of a step with
one sequence and no draft. Fitted to a 135M model with 4-bit weights on two AVX-512 cores: rows add
15 % at batch 1 (14 to 17 measured); a row for each sequence adds 28 % at batch 4, 35 % at 8."""

INITIAL_ACCEPTANCE = 0.5

MEMORY = 0.2
"""Weight of the newest observation in the running average of acceptance."""

RECOVERY_MARGIN = 0.2
"""How far above the threshold, on the way from it to 1, a silent sequence must come to draft again:
one lucky guess must not be enough."""

_SHADOW_TOKENS = 64


class AdaptiveProposer:
    """Draft length by expected gain. Implements `core.protocols.Proposer`.

    For each sequence it keeps alpha, a running average of how often a draft token is accepted given
    that the one before it was. The k-th draft token is kept with probability alpha^k, and pays if
    that exceeds the cost of its row, counted in tokens that plain decoding yields in the same time:

        alpha^k > threshold = c * B / (1 - s + s * B)

    with B drafting sequences, c = row_cost and s = SEQUENCE_COST: a step of B sequences takes
    1 - s + s * B times as long as one of a single sequence and yields B tokens.

    A sequence for which not even one token pays falls silent. It then drafts in the shadow: what
    the inner proposer would have said is compared with what plain decoding emitted, which costs a
    look-up and no row. So it notices by itself when drafting pays again, without probing.
    """

    def __init__(self, inner: Proposer, *, row_cost: float = ROW_COST) -> None:
        """Wrap a proposer.

        Args:
            inner: a proposer whose drafts are a function of the context alone.
            row_cost: see ROW_COST; between 0 and 1.
        """
        assert 0.0 < row_cost < 1.0, row_cost
        self._inner = inner
        self._row_cost = row_cost
        self._acceptance: dict[SequenceId, float] = {}
        self._silent: set[SequenceId] = set()

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """The inner proposer's drafts, as long as they pay. Does not modify."""
        threshold = self._threshold(len(contexts))
        asked = []
        for context in contexts:
            length = self._draft_length(context.sequence_id, threshold, context.max_draft)
            if length > 0:
                asked.append(
                    DraftContext(context.sequence_id, context.tokens, context.num_prompt, length)
                )
        return self._inner.propose(asked)

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Learn how many draft tokens were accepted, or would have been."""
        self._inner.observe(plan, output, verdicts)
        by_id = {verdict.sequence_id: verdict for verdict in verdicts}
        decoding = [
            s for s in plan.sequences if s.num_output > 0 and s.params.max_draft_tokens != 0
        ]
        threshold = self._threshold(len(decoding))
        silent = []
        for sequence in decoding:
            verdict = by_id.get(sequence.sequence_id)
            if verdict is None or verdict.finish is not None or not sequence.samples:
                continue
            if sequence.draft is not None:
                possible = max(depths(sequence.draft.parents.tolist()))
                self._learn(sequence.sequence_id, len(verdict.kept), possible)
            elif self._draft_length(sequence.sequence_id, threshold, 1) == 0:
                silent.append(sequence)
            self._update_silence(sequence.sequence_id, threshold)
        if silent:
            self._learn_from_shadow(silent, by_id, threshold)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop the state of ended sequences; unknown ids are ignored."""
        gone = list(sequence_ids)
        self._inner.forget(gone)
        for sequence_id in gone:
            self._acceptance.pop(sequence_id, None)
            self._silent.discard(sequence_id)

    def _threshold(self, num_sequences: int) -> float:
        count = max(num_sequences, 1)
        return self._row_cost * count / (1.0 - SEQUENCE_COST + SEQUENCE_COST * count)

    def _draft_length(self, sequence_id: SequenceId, threshold: float, limit: int) -> int:
        """How many draft tokens, up to limit, are worth their rows."""
        if sequence_id in self._silent:
            return 0
        alpha = self._acceptance.get(sequence_id, INITIAL_ACCEPTANCE)
        length, survival = 0, alpha
        while length < limit and survival > threshold:
            length += 1
            survival *= alpha
        return length

    def _learn(self, sequence_id: SequenceId, num_accepted: int, num_possible: int) -> None:
        alpha = self._acceptance.get(sequence_id, INITIAL_ACCEPTANCE)
        for _ in range(num_accepted):
            alpha += MEMORY * (1.0 - alpha)
        if num_accepted < num_possible:
            alpha -= MEMORY * alpha
        self._acceptance[sequence_id] = alpha

    def _update_silence(self, sequence_id: SequenceId, threshold: float) -> None:
        alpha = self._acceptance.get(sequence_id, INITIAL_ACCEPTANCE)
        if alpha <= threshold:
            self._silent.add(sequence_id)
        elif alpha > threshold + RECOVERY_MARGIN * (1.0 - threshold):
            self._silent.discard(sequence_id)

    def _learn_from_shadow(
        self,
        sequences: Sequence[SequencePlan],
        verdicts: dict[SequenceId, Verdict],
        threshold: float,
    ) -> None:
        contexts = [
            DraftContext(s.sequence_id, s.history, s.num_prompt, _SHADOW_TOKENS) for s in sequences
        ]
        for draft in self._inner.propose(contexts):
            firsts = draft.tokens[draft.parents < 0].tolist()
            is_hit = verdicts[draft.sequence_id].tokens[0] in firsts
            self._learn(draft.sequence_id, int(is_hit), 1)
            self._update_silence(draft.sequence_id, threshold)
