# SPDX-License-Identifier: Apache-2.0
"""HybridProposer: several proposers as one, the one that has been right most often first.

Also where a request's choice of a proposer is honoured. Its decisions depend on past verdicts only,
never on a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fdspec.core import (
    Draft,
    DraftContext,
    ModelOutput,
    SamplingParams,
    SequenceId,
    StepPlan,
    Verdict,
)
from fdspec.core.draft import is_shadow
from fdspec.core.protocols import Proposer
from fdspec.spec_decode.adaptive import (
    INITIAL_ACCEPTANCE,
    moved_acceptance,
)
from fdspec.spec_decode.draft_tree import GrowingTree, deepest_guess, paths
from fdspec.spec_decode.prediction import SOURCE as PREDICTION
from fdspec.spec_decode.step_costs import TYPICAL_COSTS, StepCosts

SOURCE = "hybrid"


class HybridProposer:
    """Members in order of preference. Implements `core.protocols.Proposer`.

    For each sequence and member it keeps alpha, a running average of how often a token of the
    member is accepted given that the one before it was; members whose guesses were left out are
    judged by them all the same. A draft of n tokens is expected to bring alpha + ... + alpha^n. The
    draft that most is expected of comes first, and the others extend it: what they have in common
    is one row, what goes further or branches off is added while rows are left and alpha^depth is
    above the cost of a row.
    """

    def __init__(self, members: Mapping[str, Proposer], costs: StepCosts = TYPICAL_COSTS) -> None:
        """Combine proposers.

        Args:
            members: by name, which requests may ask for; the earlier one wins a tie. One called
                `prediction` is for requests that bring a prediction, whatever they ask for.
            costs: of steps on this machine, with this model.
        """
        assert members
        self._members = dict(members)
        self._row_cost = costs.row
        # By (method that is asked for, whether there is a prediction): looked up in every step.
        self._chosen = {
            (wanted, predicts): tuple(
                name
                for name in members
                if (predicts if name == PREDICTION else wanted in (None, SOURCE, name))
            )
            for wanted in (None, SOURCE, *members)
            for predicts in (False, True)
        }
        self._acceptance: dict[SequenceId, dict[str, float]] = {}
        # What the members said in the last call, and how many tokens they knew.
        self._said: dict[SequenceId, tuple[int, list[tuple[str, Draft]]]] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """One draft for each context for which a member has one."""
        found: dict[SequenceId, list[tuple[str, Draft]]] = {}
        for name, member in self._members.items():
            asked = [c for c in contexts if name in self._names(c.params)]
            # Who runs a model has to see every step, even if nobody asks it for a draft.
            drafts = [] if not asked and is_shadow(contexts) else member.propose(asked)
            for draft in drafts:
                found.setdefault(draft.sequence_id, []).append((name, draft))
        by_id = {context.sequence_id: context for context in contexts}
        self._said = {key: (len(by_id[key].tokens), drafts) for key, drafts in found.items()}
        return [self._combined(by_id[key], drafts) for key, drafts in found.items()]

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Judge the members where there is a choice, and let them learn."""
        if self._said:
            self._judge(plan, {verdict.sequence_id: verdict for verdict in verdicts})
        for member in self._members.values():
            member.observe(plan, output, verdicts)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop the state of ended sequences; unknown ids are ignored."""
        gone = list(sequence_ids)
        for member in self._members.values():
            member.forget(gone)
        for sequence_id in gone:
            self._acceptance.pop(sequence_id, None)

    def _names(self, params: SamplingParams) -> tuple[str, ...]:
        """Members that may draft for a request."""
        return self._chosen.get((params.draft_method, bool(params.prediction)), ())

    def _combined(self, context: DraftContext, drafts: Sequence[tuple[str, Draft]]) -> Draft:
        if len(drafts) == 1:
            return drafts[0][1]
        rates = self._acceptance.get(context.sequence_id, {})
        judged = [(rates.get(name, INITIAL_ACCEPTANCE), draft) for name, draft in drafts]
        # Sorting is stable: the earlier member wins a tie.
        judged.sort(key=lambda pair: -_expected(*pair))
        merged = _Merged(self._row_cost)
        for index, (rate, draft) in enumerate(judged):
            merged.add(draft, rate if index > 0 else 1.0, context.max_draft)
        num_guesses = len(merged.tree)
        for _, draft in judged:
            merged.add_probes(draft, context.max_draft + context.max_probes)
        num_probes = len(merged.tree) - num_guesses
        return merged.tree.draft(context.sequence_id, SOURCE, num_probes)

    def _judge(self, plan: StepPlan, verdicts: Mapping[SequenceId, Verdict]) -> None:
        for sequence in plan.sequences:
            key, verdict = sequence.sequence_id, verdicts.get(sequence.sequence_id)
            length, drafts = self._said.get(key, (0, []))
            is_judged = length == len(sequence.history) and len(self._names(sequence.params)) > 1
            if not is_judged or verdict is None or verdict.finish is not None:
                continue
            emitted = list(verdict.tokens)
            rates = self._acceptance.setdefault(key, {})
            for name, draft in drafts:
                branches = paths(draft.cut(draft.num_guesses))
                if not branches:
                    continue
                right = max((len(b) for b in branches if b == emitted[: len(b)]), default=0)
                possible = min(max(map(len, branches)), len(emitted))
                rate = rates.get(name, INITIAL_ACCEPTANCE)
                rates[name] = moved_acceptance(rate, right, possible)


class _Merged:
    """A draft tree made of several."""

    def __init__(self, row_cost: float) -> None:
        self.tree = GrowingTree()
        self._row_cost = row_cost
        self._levels: list[int] = []

    def add(self, draft: Draft, rate: float, max_rows: int) -> None:
        """Add the guesses that are not there yet, as long as there is room and they pay.

        Args:
            draft: what a member guesses.
            rate: how often a token of it is accepted given that the one before it was.
            max_rows: most rows of the tree.
        """
        rows: dict[int, int] = {-1: -1}
        for index, parent, token, source in _rows_of(draft, draft.num_guesses):
            if parent not in rows:
                continue
            top = rows[parent]
            row = self.tree.find(top, token)
            if row is None:
                level = 1 if top < 0 else self._levels[top] + 1
                if len(self.tree) >= max_rows or rate**level <= self._row_cost:
                    continue
                row = self.tree.add(top, token, source)
                self._levels.append(level)
            elif source == PREDICTION:
                # OpenAI's counters ask what of a prediction came true, whoever guessed it too.
                self.tree.sources[row] = PREDICTION
            rows[index] = row

    def add_probes(self, draft: Draft, max_rows: int) -> None:
        """Add the probes that are not there yet, as long as there is room."""
        rows: dict[int, int] = {-1: -1}
        for index, parent, token, source in _rows_of(draft, len(draft)):
            if parent not in rows:
                continue
            row = self.tree.find(rows[parent], token)
            if row is None and index >= draft.num_guesses and len(self.tree) < max_rows:
                row = self.tree.add(rows[parent], token, source)
            if row is not None:
                rows[index] = row


def _rows_of(draft: Draft, count: int) -> Iterator[tuple[int, int, int, str]]:
    """(index, parent, token, source) of the first rows."""
    parents, tokens = draft.parents[:count].tolist(), draft.tokens[:count].tolist()
    sources = draft.sources or (draft.source,) * count
    return zip(range(count), parents, tokens, sources[:count], strict=True)


def _expected(rate: float, draft: Draft) -> float:
    """Accepted tokens to expect of a draft: alpha + ... + alpha^n over its deepest path."""
    return float(sum(rate**level for level in range(1, deepest_guess(draft) + 1)))
