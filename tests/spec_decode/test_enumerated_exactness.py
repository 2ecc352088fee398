# SPDX-License-Identifier: Apache-2.0
"""Speculation leaves the target's law as it is: proved by enumeration, to 1e-12.

A toy target over a few tokens is given by a table of logits for each history. Every way that
drafting, acceptance and the residual can go is enumerated with its probability, and the law of the
output is compared with the product of the target's own laws.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from fdspec.ops import RowParams, processed_probabilities, verify_tree
from fdspec.spec_decode import acceptance
from tests.spec_decode.enumeration import Law, ScriptedOracle, branches

VOCAB = 5
OUTPUT_LENGTH = 4
PROMPT = (3, 1)
TOLERANCE = 1e-12
History = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Processors:
    """Sampling parameters of the toy request."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    allowed: int = (1 << VOCAB) - 1


PROCESSORS = {
    "none": Processors(),
    "cold_top_k": Processors(temperature=0.3, top_k=2),
    "top_p": Processors(temperature=0.8, top_p=0.6),
    "min_p": Processors(temperature=1.5, min_p=0.3),
    "penalties": Processors(repetition=1.4, presence=0.5, frequency=0.7),
    "bias_and_mask": Processors(bias=((0, 1.5), (2, -np.inf)), allowed=0b10111),
    "greedy": Processors(temperature=0.0),
    "all": Processors(0.7, 4, 0.9, 0.1, 1.2, 0.3, 0.4, ((1, 0.5),), 0b11101),
}


class Target:
    """The toy target: its law after a history, by the production processor chain."""

    def __init__(self, processors: Processors) -> None:
        self._processors = processors
        self._laws: dict[History, Law] = {}

    def law(self, history: History) -> Law:
        """[VOCAB] float64."""
        if history not in self._laws:
            logits = np.random.default_rng([7, *history]).normal(0, 1.5, (1, VOCAB))
            law = processed_probabilities(logits.astype(np.float32), self._row_params(history))
            self._laws[history] = law[0].astype(np.float64) / law[0].astype(np.float64).sum()
        return self._laws[history]

    def _row_params(self, history: History) -> RowParams:
        chosen = self._processors
        ids = sorted(set(history))
        output = history[len(PROMPT) :]
        plain = RowParams.alike(
            1,
            temperature=chosen.temperature,
            top_k=chosen.top_k,
            top_p=chosen.top_p,
            min_p=chosen.min_p,
        )
        return dataclasses.replace(
            plain,
            repetition_penalty=np.array([chosen.repetition], np.float32),
            presence_penalty=np.array([chosen.presence], np.float32),
            frequency_penalty=np.array([chosen.frequency], np.float32),
            count_splits=np.array([0, len(ids)]),
            count_ids=np.array(ids, np.int32),
            output_counts=np.array([output.count(token) for token in ids], np.int32),
            in_prompt=np.array([token in PROMPT for token in ids], np.uint8),
            bias_splits=np.array([0, len(chosen.bias)]),
            bias_ids=np.array([token for token, _ in chosen.bias], np.int32),
            bias_values=np.array([value for _, value in chosen.bias], np.float32),
            mask=np.array([[chosen.allowed]], np.uint32),
        )


@dataclasses.dataclass(frozen=True)
class ToyDraft:
    """Tokens, parents, and the law that each token was drawn from (None: not random)."""

    tokens: list[int]
    parents: list[int]
    draft_laws: list[Law | None]

    def histories(self, history: History) -> list[History]:
        """What precedes the token that each row chooses: row 0, then one for each draft token.

        A token outside the vocabulary is never accepted: the rows behind it do not matter.
        """
        rows = [history]
        for token, parent in zip(self.tokens, self.parents, strict=True):
            rows.append((*rows[parent + 1], token) if 0 <= token < VOCAB else history)
        return rows


Drafter = Callable[[History, int, ScriptedOracle], ToyDraft]


def fixed_chain(history: History, length: int, oracle: ScriptedOracle) -> ToyDraft:
    """A chain that is a function of the history; now and then an id outside the vocabulary."""
    tokens = np.random.default_rng([11, *history]).integers(-1, VOCAB + 1, length)
    return ToyDraft(tokens.tolist(), list(range(-1, length - 1)), [None] * length)


def fixed_tree(history: History, length: int, oracle: ScriptedOracle) -> ToyDraft:
    """2 * length nodes under random parents; siblings may carry the same token."""
    generator = np.random.default_rng([13, *history])
    size = 2 * length
    parents = [int(generator.integers(-1, index)) for index in range(size)]
    return ToyDraft(generator.integers(0, VOCAB, size).tolist(), parents, [None] * size)


def drafter_law(history: History) -> Law:
    """The law of the drafter that draws at random; one token is never drafted."""
    law = np.random.default_rng([17, *history]).dirichlet(np.ones(VOCAB))
    law[sum(history) % VOCAB] = 0.0
    return law / law.sum()


def sampled_chain(history: History, length: int, oracle: ScriptedOracle) -> ToyDraft:
    """A chain drawn token by token from the drafter's law."""
    draft = ToyDraft([], [], [])
    for index in range(length):
        law = drafter_law((*history, *draft.tokens))
        draft.tokens.append(oracle.choose(law))
        draft.parents.append(index - 1)
        draft.draft_laws.append(law)
    return draft


def sampled_siblings(history: History, length: int, oracle: ScriptedOracle) -> ToyDraft:
    """`length` different tokens for the next position, drawn without replacement."""
    draft = ToyDraft([], [], [])
    law = drafter_law(history)
    for _ in range(length):
        token = oracle.choose(law)
        draft.tokens.append(token)
        draft.parents.append(-1)
        draft.draft_laws.append(law)
        law = acceptance.without(law, token)
    return draft


def rejection_step(
    target: Target, history: History, draft: ToyDraft, oracle: ScriptedOracle
) -> History:
    """What one step emits under `rejection`."""
    laws = [target.law(row) for row in draft.histories(history)]
    accepted, token = acceptance.walk(
        laws, draft.tokens, draft.parents, oracle, draft_laws=draft.draft_laws
    )
    return (*(draft.tokens[index] for index in accepted), token)


def target_match_step(
    target: Target, history: History, draft: ToyDraft, oracle: ScriptedOracle
) -> History:
    """What one step emits under `target_match`: each row's own token is drawn from its law."""
    choices = [oracle.choose(target.law(row)) for row in draft.histories(history)]
    result = verify_tree(
        np.array(draft.tokens, np.int32),
        np.array(draft.parents, np.int32),
        np.array(choices, np.int32),
        np.array([0, len(draft.tokens)]),
    )
    kept = tuple(draft.tokens[index] for index in result.accepted)
    return (*kept, int(result.next_tokens[0]))


Step = Callable[[Target, History, ToyDraft, ScriptedOracle], History]


def speculative_law(target: Target, drafter: Drafter, length: int, step: Step) -> Law:
    """[VOCAB] * OUTPUT_LENGTH: law of the first OUTPUT_LENGTH tokens that the steps emit."""
    law = np.zeros((VOCAB,) * OUTPUT_LENGTH)

    def go_on(output: History, chance: float) -> None:
        if len(output) >= OUTPUT_LENGTH:
            law[output[:OUTPUT_LENGTH]] += chance
            return
        history = PROMPT + output
        # As a server does: no draft reaches past the end of the output.
        limit = min(length, OUTPUT_LENGTH - len(output) - 1)
        emitted: defaultdict[History, float] = defaultdict(float)
        for probability, tokens in branches(
            lambda oracle: step(target, history, drafter(history, limit, oracle), oracle)
        ):
            emitted[tokens] += probability
        for tokens, probability in emitted.items():
            go_on(output + tokens, chance * probability)

    go_on((), 1.0)
    return law


def plain_law(target: Target) -> Law:
    """The same law without speculation."""
    law = np.zeros((VOCAB,) * OUTPUT_LENGTH)
    for output in itertools.product(range(VOCAB), repeat=OUTPUT_LENGTH):
        law[output] = np.prod(
            [target.law(PROMPT + output[:index])[token] for index, token in enumerate(output)]
        )
    return law


@pytest.mark.parametrize("processors", PROCESSORS.values(), ids=PROCESSORS.keys())
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("drafter", [fixed_chain, fixed_tree, sampled_chain, sampled_siblings])
def test_rejection_keeps_the_law(drafter: Drafter, length: int, processors: Processors) -> None:
    target = Target(processors)
    law = speculative_law(target, drafter, length, rejection_step)
    assert abs(law.sum() - 1) < TOLERANCE
    assert np.abs(law - plain_law(target)).max() < TOLERANCE


@pytest.mark.parametrize("processors", PROCESSORS.values(), ids=PROCESSORS.keys())
@pytest.mark.parametrize(
    ("drafter", "length"),
    [
        *((fixed_chain, length) for length in (1, 2, 3)),
        *((fixed_tree, length) for length in (1, 2)),
        *((sampled_chain, length) for length in (1, 2)),
    ],
)
def test_target_match_keeps_the_law(drafter: Drafter, length: int, processors: Processors) -> None:
    target = Target(processors)
    law = speculative_law(target, drafter, length, target_match_step)
    assert abs(law.sum() - 1) < TOLERANCE
    assert np.abs(law - plain_law(target)).max() < TOLERANCE


def test_enumeration_sees_siblings_tested_against_an_unmodified_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptance, "without", lambda law, token: law)
    target = Target(PROCESSORS["none"])
    law = speculative_law(target, fixed_tree, 2, rejection_step)
    assert np.abs(law - plain_law(target)).sum() > 0.01


def test_enumeration_sees_a_draft_law_that_was_not_sampled_from() -> None:
    def warm_chain(history: History, length: int, oracle: ScriptedOracle) -> ToyDraft:
        draft = sampled_chain(history, length, oracle)
        flat: list[Law | None] = [np.full(VOCAB, 1 / VOCAB) for _ in draft.tokens]
        return dataclasses.replace(draft, draft_laws=flat)

    target = Target(PROCESSORS["none"])
    law = speculative_law(target, warm_chain, 2, rejection_step)
    assert np.abs(law - plain_law(target)).sum() > 0.01
