# SPDX-License-Identifier: Apache-2.0
"""AdaptiveProposer: gives each sequence the draft length that pays, down to none.

Its decisions depend on past verdicts, on the number of
drafting sequences and on costs that were measured before, never on a clock. They change how fast
tokens come, never which.
"""

from __future__ import annotations

import math
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
from fdspec.spec_decode.draft_tree import deepest_guess
from fdspec.spec_decode.step_costs import TYPICAL_COSTS, StepCosts

INITIAL_ACCEPTANCE = 0.5

MEMORY = 0.2
"""Weight of the newest observation in the running average of acceptance."""

RECOVERY_MARGIN = 0.2
"""How far above the threshold, on the way from it to 1, a silent sequence must come to draft again:
one lucky guess must not be enough."""

PROBING_STEPS = 32
"""How often a sequence that has fallen silent drafts one token where a model drafts, which cannot
be asked for free."""

_SHADOW_TOKENS = 64

LONGEST_PAUSE = 8
"""Steps between two looks at a silent sequence whose guesses have been wrong or missing."""

# An acceptance above this counts as 1, and then every length pays.
_CERTAIN = 1.0 - 1e-9
_UNLIMITED = 1 << 30


def moved_acceptance(acceptance: float, num_accepted: int, num_possible: int) -> float:
    """A running average after one observation for each accepted token and one for a refused one.

    Args:
        acceptance: the average before, 0 .. 1.
        num_accepted: tokens of a path that were accepted.
        num_possible: how many could have been.
    """
    acceptance = 1.0 - (1.0 - acceptance) * (1.0 - MEMORY) ** num_accepted
    return acceptance * (1.0 - MEMORY) if num_accepted < num_possible else acceptance


class _State:
    """What is known of one sequence: alpha of AdaptiveProposer, and how long it has been silent.

    A silent one is looked at after `pause` steps, `left` of which are still to come.
    """

    __slots__ = ("acceptance", "is_silent", "left", "num_silent", "pause")

    def __init__(self) -> None:
        self.acceptance = INITIAL_ACCEPTANCE
        self.is_silent = False
        self.num_silent = 0
        self.pause = self.left = 1

    def speaks(self) -> None:
        """Start to count anew: it drafted in this step."""
        self.num_silent = 0
        self.pause = self.left = 1

    def is_looked_at(self) -> bool:
        """Count a silent step; True if it is time to look, and then pauses become longer."""
        self.num_silent += 1
        self.left -= 1
        if self.left > 0:
            return False
        self.pause = self.left = min(2 * self.pause, LONGEST_PAUSE)
        return True

    def draft_length(self, threshold: float) -> int:
        """How many draft tokens are worth their rows: the most with alpha^k > threshold."""
        alpha = self.acceptance
        if self.is_silent or alpha <= threshold:
            return 0
        if alpha >= _CERTAIN:
            return _UNLIMITED
        return math.ceil(math.log(threshold) / math.log(alpha)) - 1

    def update_silence(self, threshold: float) -> None:
        """Fall silent below the threshold; speak again well above it."""
        if self.acceptance <= threshold:
            self.is_silent = True
        elif self.acceptance > threshold + RECOVERY_MARGIN * (1.0 - threshold):
            self.is_silent = False


_NEW = _State()


def context_of(sequence: SequencePlan, max_draft: int) -> DraftContext:
    """What a proposer could have known of a sequence before a step of decoding it."""
    return DraftContext(
        sequence.sequence_id,
        sequence.history,
        sequence.num_prompt,
        max_draft,
        sequence.params,
        sequence.cache_salt,
    )


class AdaptiveProposer:
    """Draft length by expected gain. Implements `core.protocols.Proposer`.

    For each sequence it keeps alpha, a running average of how often a draft token is accepted given
    that the one before it was. The k-th draft token is kept with probability alpha^k, and pays if
    that exceeds the cost of its row, counted in tokens that plain decoding yields in the same time:

        alpha^k > threshold = c * B / (1 - s + s * B) + d

    with B drafting sequences, c = costs.row, s = costs.sequence and d = costs.draft: a step of B
    sequences takes 1 - s + s * B times as long as one of a single sequence and yields B tokens, and
    a pass of a drafting model, which drafts a token for each of them, takes d times as long. Probes
    are beside this: their proposer gets the rows that are left and judges by itself what they are
    worth.

    A sequence for which not even one token pays falls silent. It then drafts in the shadow: what
    the inner proposer would have said is compared with what plain decoding emitted, which costs a
    look-up and no row. So it notices by itself when drafting pays again, without probing; where a
    model drafts it has to try a token now and then. As long as nothing is right, it looks at every
    second, fourth, and then every eighth step only.
    """

    def __init__(self, inner: Proposer, costs: StepCosts = TYPICAL_COSTS) -> None:
        """Wrap a proposer.

        Args:
            inner: a proposer whose drafts are a function of the context alone.
            costs: of steps on this machine, with this model.
        """
        self._inner = inner
        self._costs = costs
        self._states: dict[SequenceId, _State] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """The inner proposer's drafts, as long as they pay."""
        threshold = self._threshold(len(contexts))
        asked = []
        for context in contexts:
            state = self._states.get(context.sequence_id, _NEW)
            length = min(self._length(state, threshold), context.max_draft)
            if length > 0:
                # A proposer's probes are worth what it says that they are.
                probes = context.max_draft - length + context.max_probes
                asked.append(context._replace(max_draft=length, max_probes=probes))
        return self._inner.propose(asked)

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Learn how many draft tokens were accepted, or would have been."""
        self._inner.observe(plan, output, verdicts)
        by_id = {verdict.sequence_id: verdict for verdict in verdicts}
        decoding = [
            s
            for s in plan.sequences
            if s.params.max_draft_tokens != 0 and len(s.history) > s.num_prompt
        ]
        threshold = self._threshold(len(decoding))
        silent = []
        for sequence in decoding:
            verdict = by_id.get(sequence.sequence_id)
            if verdict is None or verdict.finish is not None or not sequence.samples:
                continue
            state = self._states.get(sequence.sequence_id)
            if state is None:
                state = self._states[sequence.sequence_id] = _State()
            if sequence.draft is not None:
                num_kept = len(verdict.kept)
                possible = max(deepest_guess(sequence.draft), num_kept)
                state.acceptance = moved_acceptance(state.acceptance, num_kept, possible)
                state.speaks()
            elif state.draft_length(threshold) == 0 and state.is_looked_at():
                silent.append(sequence)
            state.update_silence(threshold)
        if silent:
            self._learn_from_shadow(silent, by_id, threshold)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop the state of ended sequences; unknown ids are ignored."""
        gone = list(sequence_ids)
        self._inner.forget(gone)
        for sequence_id in gone:
            self._states.pop(sequence_id, None)

    def _threshold(self, num_sequences: int) -> float:
        return self._costs.row_price(num_sequences) + self._costs.draft

    def _length(self, state: _State, threshold: float) -> int:
        if self._costs.draft > 0.0 and state.num_silent >= PROBING_STEPS:
            return 1
        return state.draft_length(threshold)

    def _learn_from_shadow(
        self,
        sequences: Sequence[SequencePlan],
        verdicts: dict[SequenceId, Verdict],
        threshold: float,
    ) -> None:
        for made in self._inner.propose([context_of(s, _SHADOW_TOKENS) for s in sequences]):
            draft = made.cut(made.num_guesses)
            emitted = verdicts[draft.sequence_id].tokens[0]
            pairs = zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True)
            state = self._states[draft.sequence_id]
            is_right = any(token == emitted and parent < 0 for token, parent in pairs)
            state.acceptance = moved_acceptance(state.acceptance, int(is_right), 1)
            state.update_silence(threshold)
            if is_right:
                state.pause = state.left = 1
