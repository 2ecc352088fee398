# SPDX-License-Identifier: Apache-2.0
"""Lookahead decoding: the shape of its trees, what its window finds, and when it falls silent."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fdspec.core import DraftContext, FinishReason, ModelOutput, Verdict
from fdspec.core.draft import depths
from fdspec.core.protocols import Proposer
from fdspec.scheduler.draft_stats import draft_stats
from fdspec.spec_decode.adaptive import AdaptiveProposer
from fdspec.spec_decode.hybrid import HybridProposer
from fdspec.spec_decode.lookahead import _PAUSE, SOURCE, WINDOW, LookaheadProposer
from fdspec.spec_decode.ngram import NgramProposer
from fdspec.spec_decode.ngram_pool import Guess, NgramPool
from fdspec.spec_decode.step_costs import StepCosts
from tests.spec_decode.plans import KEY, decoding, step_of

EOS = (0, 50)
NO_OUTPUT = ModelOutput(np.empty((0, 1), np.float32), np.zeros(2, np.int64))
CHEAP, DEAR = StepCosts(0.02, 0.002), StepCosts(0.17, 0.12)


def by_position(position, token):
    """A model that knows what comes where, whatever stands before; its text never repeats."""
    return 100 + 7 * position


class Game:
    """One sequence, decoded by a model that knows the next token by position and last token."""

    def __init__(self, proposer, *, follows=by_position, prompt=tuple(range(60, 80)), key=KEY):
        self.proposer, self.follows, self.prompt, self.key = proposer, follows, prompt, key
        self.output = [follows(len(prompt), prompt[-1])]
        self.draft: Any = None
        self.stats: Any = None

    def context(self, max_draft=30):
        tokens = np.array([*self.prompt, *self.output], np.int32)
        return DraftContext(self.key, tokens, len(self.prompt), max_draft)

    def step(self, max_draft=30, *, use_logits=False, batch=1):
        """One step; returns how many tokens it brought."""
        others = [self.context()._replace(sequence_id=(f"o{i}", 0)) for i in range(batch - 1)]
        drafts = self.proposer.propose([self.context(max_draft), *others]) if max_draft else []
        self.draft = next((d for d in drafts if d.sequence_id == self.key), None)
        tokens, parents = [self.output[-1]], []
        if self.draft is not None:
            tokens += self.draft.tokens.tolist()
            parents = self.draft.parents.tolist()
            assert len(parents) <= max_draft
            assert len(set(zip(parents, tokens[1:], strict=True))) == len(parents), "equal siblings"
        after = len(self.prompt) + len(self.output)
        places = [after + level for level in [0, *depths(parents)]]
        said = np.array(list(map(self.follows, places, tokens)), np.int32)
        kept: list[int] = []
        while True:
            at = kept[-1] if kept else -1
            wanted = (at, int(said[at + 1]))
            found = [i for i, e in enumerate(zip(parents, tokens[1:], strict=True)) if e == wanted]
            if not found:
                break
            kept.append(found[0])
        new = (*(tokens[1 + row] for row in kept), int(said[(kept[-1] if kept else -1) + 1]))
        plan = decoding(self.prompt, self.output, key=self.key)._replace(draft=self.draft)
        splits = np.array([0, len(said)], np.int64)
        output = ModelOutput(np.empty((0, 1), np.float32), splits, said)
        if use_logits:
            logits = np.zeros((len(said), 2000), np.float32)
            logits[np.arange(len(said)), said] = 1.0
            output = ModelOutput(logits, splits)
        num_drafted = 0 if self.draft is None else len(self.draft.counted(kept))
        verdict = Verdict(self.key, new, tuple(kept), num_drafted)
        self.stats = draft_stats(self.draft, verdict) if self.draft is not None else None
        self.proposer.observe(step_of(plan), output, [verdict])
        self.output += new
        return len(new)

    def steps(self, count, max_draft=30, **options):
        """Tokens a step of so many steps."""
        return sum(self.step(max_draft, **options) for _ in range(count)) / count

    def check(self):
        """The output is what the model alone would have said."""
        text = [*self.prompt, *self.output]
        for position in range(len(self.prompt), len(text)):
            assert text[position] == self.follows(position, text[position - 1])


def test_a_step_has_exactly_the_rows_that_its_users_reserve():
    """(N - 1) * (W + G), the last committed token among them."""
    for level, window, guesses in ((4, 5, 5), (3, 1, 1), (5, 2, 7), (16, 16, 16)):
        source = random.Random(level)
        text = [1]
        for _ in range(guesses):
            text += [*(source.randrange(2000, 9000) for _ in range(level - 1)), 1]
        proposer = LookaheadProposer(level=level, window=window, guess_set_size=guesses)
        game = Game(proposer, prompt=tuple(text), follows=lambda *_, s=source: s.randrange(9000))
        rows = (level - 1) * (window + guesses)
        for _ in range(level):
            game.step(rows)
        game.output.append(1)
        (draft,) = proposer.propose([game.context(rows)])
        assert 1 + len(draft) == rows
        assert draft.num_probes == (level - 1) * window - 1
        levels = depths(draft.parents.tolist())
        assert max(levels[: draft.num_guesses]) == level - 1
        # Cell (r, c) of the window is r + c below the last committed token, which is cell (0, 0).
        cells = sorted(r + c for r in range(level - 1) for c in range(window))
        assert sorted([0, *levels[draft.num_guesses :]]) == cells


def test_the_window_finds_what_no_text_has():
    with_window = Game(LookaheadProposer())
    assert with_window.steps(60) > 2.0
    with_window.check()
    assert len(set(with_window.output)) == len(with_window.output), "nothing to look up"
    without = Game(LookaheadProposer(costs=DEAR))
    assert without.steps(60) == 1.0 and without.draft is None


def test_best_tokens_and_logits_say_the_same():
    games = [Game(LookaheadProposer()) for _ in range(2)]
    for _ in range(20):
        assert games[0].step() == games[1].step(use_logits=True)
    assert games[0].output == games[1].output


def test_every_end_of_text_is_kept_out_of_the_window():
    """Also the second one of a model that has two."""

    def follows(position, token):
        return EOS[position % 2] if position % 3 == 0 else 60 + (position + token) % 20

    proposer = LookaheadProposer(eos_ids=EOS)
    game = Game(proposer, follows=follows)
    for _ in range(30):
        game.step()
        (draft,) = proposer.propose([game.context()])
        window = proposer._states[KEY].window
        assert window is not None
        assert not {token for level in window._levels for token in level[1:]} & set(EOS)
    assert len(draft) > 0


@pytest.mark.parametrize("max_draft", [1, 2, 3, 7, 12, 29])
def test_a_small_share_of_a_step_gets_a_smaller_window(max_draft):
    game = Game(LookaheadProposer())
    assert game.steps(40, max_draft) >= (1.2 if max_draft > 3 else 1.0)
    game.check()
    # And the whole one again when there is room.
    assert game.steps(40) > 2.0
    game.check()


def test_steps_without_drafts_leave_the_window_as_it_is():
    game = Game(LookaheadProposer())
    game.steps(20)
    game.steps(7, 0)
    assert game.steps(20) > 1.8
    game.check()


def test_what_the_scheduler_cuts_off_is_not_read():
    """Rows that were proposed and not computed say nothing."""
    source = random.Random(3)

    class Cut(LookaheadProposer):
        def propose(self, contexts):
            return [d.cut(source.randrange(1, 31)) for d in super().propose(contexts)]

    game = Game(Cut())
    assert game.steps(80) > 1.2
    game.check()


def test_random_tokens_are_a_function_of_the_sequence_and_of_nothing_else():
    state = random.getstate()
    games = [Game(LookaheadProposer(), key=key) for key in (KEY, KEY, ("r", 1), ("s", 0))]
    for game in games:
        game.step()
    assert random.getstate() == state
    first, again, choice, other = (game.draft.tokens.tolist() for game in games)
    assert first == again
    assert choice != first and other != first


def test_asking_twice_gives_the_same():
    game = Game(LookaheadProposer())
    for _ in range(12):
        once, twice = (game.proposer.propose([game.context()]) for _ in range(2))
        for one, other in zip(once, twice, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.parents.tolist() == other.parents.tolist()
        game.step()


def test_window_rows_count_only_where_they_come_true():
    game = Game(LookaheadProposer(), follows=lambda p, t: 51 + p * p * (1 + t % 2) % 913)
    for _ in range(30):
        game.step()
        draft, stats = game.draft, game.stats
        if stats is None:
            assert draft is None or draft.num_guesses == 0
            continue
        assert stats.num_accepted <= stats.num_drafted
        assert stats.num_drafted <= draft.num_guesses + stats.num_accepted
        assert {name for name, _, _ in stats.by_source} <= {SOURCE, WINDOW}
    assert game.draft.num_probes > 0


def test_a_stop_inside_a_draft_leaves_no_trace_of_what_follows():
    game = Game(LookaheadProposer())
    game.steps(20)
    (draft,) = game.proposer.propose([game.context()])
    levels = depths(draft.parents.tolist())
    kept = [draft.parents.tolist().index(-1)]
    num_drafted = sum(levels[row] <= 1 for row in draft.counted(kept))
    stats = draft_stats(draft, Verdict(KEY, (5, 6), tuple(kept), num_drafted))
    assert stats is not None
    assert (stats.num_drafted, stats.num_accepted) == (num_drafted, 1)
    assert (stats.num_positions or stats.num_drafted) == 1


# -- the goodput rule -----------------------------------------------------------------------------


def columns_of(proposer):
    return proposer._states[KEY].columns


def test_the_window_is_as_wide_as_is_worth_its_rows():
    widths = []
    for row in (0.001, 0.003, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.12, 0.45):
        game = Game(LookaheadProposer(window=16, costs=StepCosts(0.1, row)))
        game.step()
        widths.append(columns_of(game.proposer))
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 16 and widths[-1] == 0 and len(set(widths)) > 4


def test_the_window_shrinks_with_load_and_recovers():
    game = Game(LookaheadProposer(costs=StepCosts(0.02, 0.002)))
    game.step()
    alone = columns_of(game.proposer)
    game.step(batch=8)
    crowded = columns_of(game.proposer)
    game.step(batch=200)
    assert alone == 5 and 0 < crowded < alone and columns_of(game.proposer) == 0
    game.step()
    assert columns_of(game.proposer) == alone


def test_a_window_that_brings_nothing_is_closed_and_tried_again():
    source = random.Random(5)
    game = Game(
        LookaheadProposer(costs=StepCosts(0.1, 0.01)), follows=lambda *_: source.randrange(5000)
    )
    open_steps = 0
    for _ in range(4 * _PAUSE):
        game.step()
        open_steps += columns_of(game.proposer) > 0
    assert 10 <= open_steps <= 0.2 * 4 * _PAUSE
    assert open_steps > 3 * 5, "it was tried again"


def test_one_that_brings_something_stays_open():
    game = Game(AdaptiveProposer(LookaheadProposer(costs=CHEAP), CHEAP))
    assert game.steps(60) > 1.8
    game.check()
    assert game.draft.num_probes > 0


def test_in_a_hybrid_its_rows_stand_beside_those_of_others():
    lookahead = LookaheadProposer(costs=CHEAP)
    members: dict[str, Proposer] = {"ngram": NgramProposer(5), "lookahead": lookahead}
    game = Game(AdaptiveProposer(HybridProposer(members, CHEAP), CHEAP), prompt=(60, 61, 62, 63))
    assert game.steps(60) > 1.5
    game.check()
    assert game.draft.num_probes > 0


# -- the pool -------------------------------------------------------------------------------------


def pool_of(*tokens, level=3, guess_set_size=2):
    pool = NgramPool(level, guess_set_size)
    pool.follow(np.array(tokens, np.int32))
    return pool


def test_the_pool_keeps_the_last_ngrams_of_each_token():
    pool = pool_of(1, 2, 3, 1, 4, 5, 1, 6, 7)
    assert list(pool.guesses(1)) == [Guess((6, 7), True), Guess((4, 5), True)]
    pool.add((1, 4, 5), is_text=False)
    assert list(pool.guesses(1)) == [Guess((4, 5), True), Guess((6, 7), True)]
    pool.add((1, 8, 9), is_text=False)
    assert list(pool.guesses(1)) == [Guess((8, 9), False), Guess((4, 5), True)]
    assert list(pool.guesses(99)) == []


def test_a_text_can_come_in_pieces_of_any_size():
    source = random.Random(1)
    text = np.array([source.randrange(9) for _ in range(200)], np.int32)
    whole = pool_of(*text, level=4, guess_set_size=3)
    pieces = NgramPool(4, 3)
    end = 0
    while end < len(text):
        end = min(end + source.randrange(1, 9), len(text))
        pieces.follow(text[:end])
        pieces.follow(text[:end])
    for token in range(9):
        assert list(pieces.guesses(token)) == list(whole.guesses(token))


def test_another_text_under_the_same_name_starts_anew():
    pool = pool_of(1, 2, 3, 4)
    pool.follow(np.array([1, 2, 9, 9, 1, 7, 8], np.int32))
    assert list(pool.guesses(1)) == [Guess((7, 8), True), Guess((2, 9), True)]
    assert list(pool.guesses(2)) == [Guess((9, 9), True)]
    pool.follow(np.array([5, 6, 7], np.int32))
    assert list(pool.guesses(1)) == [] and list(pool.guesses(5)) == [Guess((6, 7), True)]


def test_nothing_of_a_request_is_ever_another_ones_draft():
    proposer = LookaheadProposer(costs=DEAR)
    text = np.array([1, 2, 3, 4, 1], np.int32)
    for name, salt in (("a", "x"), ("b", "x"), ("a", "y")):
        (draft,) = proposer.propose([DraftContext((name, 0), text, 5, 9, cache_salt=salt)])
        assert draft.tokens.tolist() == [2, 3, 4]
    short = text[-1:]
    for name, salt in (("c", "x"), ("a", "z")):
        assert proposer.propose([DraftContext((name, 0), short, 1, 9, cache_salt=salt)]) == []
    proposer.forget([("a", 0), ("b", 0), ("c", 0), ("unknown", 1)])
    assert not proposer._states


def test_prompts_are_taken_in_chunk_by_chunk_and_after_a_preemption_not_again():
    proposer = LookaheadProposer(costs=DEAR)
    prompt = list(range(100, 180))
    chunk = decoding(prompt[:30], [])._replace(num_prompt=80, samples=False)
    proposer.observe(step_of(chunk), NO_OUTPUT, [])
    assert proposer._states[KEY].pool.num_followed == 30
    proposer.propose([DraftContext(KEY, np.array([*prompt, 5], np.int32), 80, 9)])
    proposer.observe(step_of(chunk), NO_OUTPUT, [])
    assert proposer._states[KEY].pool.num_followed == 81
    off = replace(chunk.params, max_draft_tokens=0)
    proposer.observe(step_of(chunk._replace(sequence_id=("o", 0), params=off)), NO_OUTPUT, [])
    assert ("o", 0) not in proposer._states


def test_the_end_of_a_sequence_is_not_looked_at():
    game = Game(LookaheadProposer())
    game.steps(5)
    (draft,) = game.proposer.propose([game.context()])
    plan = decoding(game.prompt, game.output)._replace(draft=draft)
    verdict = Verdict(KEY, (1,), (), 3, finish=FinishReason.STOP)
    game.proposer.observe(step_of(plan), NO_OUTPUT, [verdict])
