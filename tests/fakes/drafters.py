# SPDX-License-Identifier: Apache-2.0
"""Adversarial proposers: right, wrong, malformed, late. None of them may change a token.

Those that know the future replay an oracle, the output of plain decoding for each sequence.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fdspec.core import Draft, DraftContext, ModelOutput, SequenceId, StepPlan, Verdict

Oracle = Mapping[SequenceId, Sequence[int]]
"""Output tokens of plain decoding."""

MakeTokens = Callable[[list[int], int], list[int]]
"""(tokens that plain decoding will give next, vocab size) -> chain to draft."""


class Drafter:
    """Base: one draft for each context, made by `draft`. Implements `core.protocols.Proposer`."""

    def __init__(self, oracle: Oracle, vocab_size: int, length: int) -> None:
        self.oracle = oracle
        self.vocab_size = vocab_size
        self.length = length

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        return [draft for context in contexts for draft in self.draft(context)]

    def draft(self, context: DraftContext) -> list[Draft]:
        raise NotImplementedError

    def future(self, context: DraftContext) -> list[int]:
        """What plain decoding gives next, up to the end of the output."""
        position = len(context.tokens) - context.num_prompt
        return list(self.oracle.get(context.sequence_id, ())[position:])

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        pass

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        pass


class ChainDrafter(Drafter):
    """A chain that a function makes of the future."""

    def __init__(self, oracle: Oracle, vocab_size: int, length: int, *, make: MakeTokens) -> None:
        super().__init__(oracle, vocab_size, length)
        self.make = make

    def draft(self, context: DraftContext) -> list[Draft]:
        length = min(self.length, context.max_draft)
        tokens = self.make(self.future(context)[:length], self.vocab_size)
        return [Draft.chain(context.sequence_id, tokens[:length], "chain")]


class OverLong(Drafter):
    """Right, but far longer than allowed."""

    def draft(self, context: DraftContext) -> list[Draft]:
        tokens = self.future(context)[: 10 * context.max_draft + 100]
        return [Draft.chain(context.sequence_id, [*tokens, *([3] * 100)], "over-long")]


class RandomTree(Drafter):
    """Trees with random shapes and siblings, into which the right path is woven."""

    def draft(self, context: DraftContext) -> list[Draft]:
        position = len(context.tokens)
        source = random.Random(f"{context.sequence_id} {position}")
        future = self.future(context)
        tokens: list[int] = []
        parents: list[int] = []
        levels: list[int] = []
        on_path = {-1: 0}
        for index in range(min(2 * self.length, context.max_draft)):
            parent = source.randrange(-1, index)
            level = 0 if parent < 0 else levels[parent] + 1
            token = source.randrange(self.vocab_size)
            if parent in on_path and source.random() < 0.6 and level < len(future):
                token = future[level]
            if parent in on_path and level < len(future) and token == future[level]:
                on_path[index] = level
            tokens.append(token)
            parents.append(parent)
            levels.append(level)
        return [
            Draft(
                context.sequence_id,
                np.array(tokens, np.int32),
                np.array(parents, np.int32),
                "tree",
            )
        ]


class Malformed(Drafter):
    """Unknown sequences, repeated drafts, parents out of range, arrays of different lengths."""

    def draft(self, context: DraftContext) -> list[Draft]:
        right: Any = np.array(self.future(context)[: self.length], np.int64)
        kind = len(context.tokens) % 5
        parents: Any = np.arange(-1, len(right) - 1)
        if kind == 0:
            parents = parents + 1
        elif kind == 1:
            parents = parents - 5
        elif kind == 2:
            parents = parents[: len(parents) // 2]
        elif kind == 3:
            right = right.astype(np.float64)
        nobody = Draft.chain(("nobody", 7), [1, 2, 3], "malformed")
        draft = Draft(context.sequence_id, right, parents, "malformed")
        return [nobody, draft, Draft.chain(context.sequence_id, [5], "malformed")]


class Late(Drafter):
    """Answers with the drafts of the call before, whoever is there now."""

    def __init__(self, oracle: Oracle, vocab_size: int, length: int) -> None:
        super().__init__(oracle, vocab_size, length)
        self.previous: list[Draft] = []

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        late = self.previous
        self.previous = [
            Draft.chain(context.sequence_id, self.future(context)[: self.length], "late")
            for context in contexts
        ]
        return late


def _wrong(token: int, vocab_size: int) -> int:
    return (token + 1) % vocab_size


def _right_then_wrong(count: int) -> MakeTokens:
    def make(future: list[int], vocab_size: int) -> list[int]:
        return future[:count] + [_wrong(token, vocab_size) for token in future[count:]]

    return make


def all_drafters(
    oracle: Oracle, vocab_size: int, *, eos_id: int, stop_id: int, length: int
) -> dict[str, Drafter]:
    """Every adversary by name.

    Args:
        oracle: output of plain decoding.
        vocab_size: ids 0 .. vocab_size - 1 exist.
        eos_id: token that ends an output.
        stop_id: token that ends the output of some requests.
        length: draft tokens a step.
    """

    def chain(make: MakeTokens) -> Drafter:
        return ChainDrafter(oracle, vocab_size, length, make=make)

    outside = [vocab_size, -1, vocab_size + 17, 2**31 - 1, -(2**31)]
    return {
        "right": chain(lambda future, _: future),
        "wrong": chain(_right_then_wrong(0)),
        "right-1-then-wrong": chain(_right_then_wrong(1)),
        "right-3-then-wrong": chain(_right_then_wrong(3)),
        "eos-spam": chain(lambda future, _: [eos_id] * (len(future) + 1)),
        "eos-inside": chain(lambda future, _: [*future[:1], eos_id, *future[1:]]),
        "stop-inside": chain(lambda future, _: [*future[:2], stop_id, *future[2:]]),
        "outside": chain(lambda future, _: [*future[:1], *outside]),
        "empty": chain(lambda future, _: []),
        "over-long": OverLong(oracle, vocab_size, length),
        "tree": RandomTree(oracle, vocab_size, length),
        "malformed": Malformed(oracle, vocab_size, length),
        "late": Late(oracle, vocab_size, length),
    }
