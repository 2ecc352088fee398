# SPDX-License-Identifier: Apache-2.0
"""Adaptive draft length: full where drafts come true, none where they do not, and back again."""

import random

import numpy as np
import pytest

from fdspec.core import Draft, DraftContext, ModelOutput, Verdict
from fdspec.spec_decode.adaptive import LONGEST_PAUSE, AdaptiveProposer
from fdspec.spec_decode.ngram import NgramProposer
from fdspec.spec_decode.step_costs import StepCosts
from tests.fakes.drafters import Drafter
from tests.spec_decode.plans import KEY, decoding, step_of

NO_OUTPUT = ModelOutput(np.zeros((0, 1), np.float32), np.zeros(1, np.int64))


class Guesser(Drafter):
    """Drafts what a function says."""

    def __init__(self, guess):
        super().__init__({}, 100, 0)
        self.guess = guess

    def draft(self, context):
        return [self.guess(context)]


class Game:
    """One sequence whose next tokens are known; the drafter is right when told so."""

    def __init__(self, *, length=5, row_cost=0.15, batch=1):
        self.is_right = True
        self.proposer = AdaptiveProposer(Guesser(self.guess), StepCosts(0.17, row_cost))
        self.length = length
        self.batch = batch
        self.output = [1]
        self.num_rows = self.num_steps = 0

    def guess(self, context):
        tokens = [2 if self.is_right else 3] * min(self.length, context.max_draft)
        return Draft.chain(context.sequence_id, tokens, "test")

    def context(self, name=KEY):
        return DraftContext(name, np.array([9, *self.output], np.int32), 1, 50)

    def step(self):
        """One engine step; every next token is 2. Returns the draft's length."""
        others = [self.context((f"other {i}", 0)) for i in range(self.batch - 1)]
        drafts = self.proposer.propose([self.context(), *others])
        mine = next((d for d in drafts if d.sequence_id == KEY), None)
        sequence = decoding((9,), self.output, draft=() if mine is None else mine.tokens.tolist())
        accepted = len(mine) if mine is not None and self.is_right else 0
        verdict = Verdict(
            KEY, (2,) * (accepted + 1), tuple(range(accepted)), sequence.num_draft_rows
        )
        fillers = [decoding((9,), [1], key=(f"other {i}", 0)) for i in range(self.batch - 1)]
        self.proposer.observe(step_of(sequence, *fillers), NO_OUTPUT, [verdict])
        self.output += verdict.tokens
        self.num_steps += 1
        self.num_rows += sequence.num_rows
        return sequence.num_draft_rows


def test_right_drafts_reach_and_keep_the_full_length():
    game = Game(length=5)
    lengths = [game.step() for _ in range(20)]
    assert lengths[0] >= 1
    assert lengths[3:] == [5] * 17


def test_a_miss_streak_ends_in_silence_at_little_cost():
    game = Game()
    game.is_right = False
    lengths = [game.step() for _ in range(200)]
    assert lengths[20:] == [0] * 180
    assert sum(lengths) * 0.15 <= 0.05 * 100, "rows wasted on an answer of 100 tokens"


def test_silence_ends_by_itself_when_drafts_would_be_right():
    game = Game()
    game.is_right = False
    for _ in range(50):
        game.step()
    game.is_right = True
    lengths = [game.step() for _ in range(20)]
    assert lengths[0] == 0, "a silent sequence spends no row on probing"
    assert 1 in lengths[: LONGEST_PAUSE + 4] and lengths[-1] == 5


def test_a_silent_sequence_is_looked_at_less_and_less():
    game = Game()
    game.is_right = False
    looks = []

    def guess(context):
        looks.append(len(game.output))
        return Draft.chain(context.sequence_id, [3], "test")

    game.proposer = AdaptiveProposer(Guesser(guess), StepCosts(0.17, 0.9))
    for _ in range(100):
        game.step()
    pauses = [b - a for a, b in zip(looks, looks[1:], strict=False)]
    assert pauses == [2, 4, *[LONGEST_PAUSE] * (len(pauses) - 2)]
    assert len(looks) < 20


def test_one_lucky_guess_does_not_end_silence():
    game = Game()
    game.is_right = False
    for _ in range(50):
        game.step()
    for _ in range(20):
        game.is_right = True
        assert game.step() == 0
        game.is_right = False
        for _ in range(9):
            assert game.step() == 0


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8])
def test_rarely_right_drafts_cost_less_than_five_percent(rate):
    """Time in units of a plain step; a row more costs 0.15 of one."""
    source = random.Random(7)
    tokens = steps = rows = 0
    for _ in range(30):
        game = Game()
        while len(game.output) < 100:
            game.is_right = source.random() < rate
            game.step()
        tokens += len(game.output) - 1
        steps += game.num_steps
        rows += game.num_rows - game.num_steps
    assert steps + 0.15 * rows <= 1.05 * tokens


def test_a_larger_batch_drafts_less():
    """With many sequences a step is bound by arithmetic, and a row costs what a token costs."""
    lengths = {}
    for batch in (1, 4, 64):
        game = Game(batch=batch, length=8)
        lengths[batch] = sum(game.step() for _ in range(12)) / 12
    assert lengths[1] > lengths[4] > lengths[64]


def test_a_late_start_in_a_large_batch_is_noticed():
    game = Game(batch=16, row_cost=0.2)
    assert game.step() == 0, "a new sequence is not yet trusted so far"
    assert max(game.step() for _ in range(20)) > 0


def test_sequences_are_judged_one_by_one():
    proposer = AdaptiveProposer(NgramProposer(4))
    good, bad = ("good", 0), ("bad", 0)
    tokens = [1, 2, 3, 4, 5, 6, 1, 2]
    for _ in range(20):
        contexts = [DraftContext(k, np.array(tokens, np.int32), 6, 4) for k in (good, bad)]
        drafts = {d.sequence_id: d for d in proposer.propose(contexts)}
        plans, verdicts = [], []
        for key in (good, bad):
            draft = drafts[key].tokens.tolist() if key in drafts else ()
            plans.append(decoding(tokens[:6], tokens[6:], draft=draft, key=key))
            kept = tuple(range(len(draft))) if key == good else ()
            verdicts.append(Verdict(key, (3,) * (len(kept) + 1) if key == good else (9,), kept))
        proposer.observe(step_of(*plans), NO_OUTPUT, verdicts)
    assert good in drafts and bad not in drafts
    proposer.forget([good, bad, ("unknown", 3)])
    again = {d.sequence_id: len(d) for d in proposer.propose(contexts)}
    assert set(again) == {good, bad}, "a new sequence of that name starts anew"


def test_replicas_that_see_the_same_events_draft_the_same():
    source = random.Random(3)
    tokens = [source.randrange(3) for _ in range(40)]
    replicas = [AdaptiveProposer(NgramProposer(5, min_ngram_size=1)) for _ in range(2)]
    keys = [(f"r{i}", i % 2) for i in range(5)]
    histories = {key: list(tokens) for key in keys}
    for _ in range(60):
        contexts = [DraftContext(key, np.array(histories[key], np.int32), 10, 7) for key in keys]
        answers = [
            [(d.sequence_id, d.tokens.tolist(), d.parents.tolist()) for d in r.propose(contexts)]
            for r in replicas
        ]
        assert answers[0] == answers[1]
        drafts = {key: tokens for key, tokens, _ in answers[0]}
        plans, verdicts = [], []
        for key in keys:
            draft = drafts.get(key, [])
            accepted = source.randrange(len(draft) + 1)
            plans.append(decoding(histories[key][:10], histories[key][10:], draft=draft, key=key))
            new = (*draft[:accepted], source.randrange(3))
            verdicts.append(Verdict(key, new, tuple(range(accepted)), len(draft)))
            histories[key] += new
        for replica in replicas:
            replica.observe(step_of(*plans), NO_OUTPUT, verdicts)
