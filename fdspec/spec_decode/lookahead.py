# SPDX-License-Identifier: Apache-2.0
"""LookaheadProposer: drafts n-grams that the model itself has let fall while it verified.

Lookahead decoding (Fu et al., arXiv 2402.02057). All of its state belongs to one sequence: a pool
of n-grams and a window of guesses, which the model corrects in the rows of the step's draft tree.
Nothing is shared between requests, so that a draft tells nobody anything about others; `memory` or
`suffix` beside it in a `hybrid` do that, under their limits.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fdspec.core import (
    Draft,
    DraftContext,
    ModelOutput,
    SequenceId,
    SequencePlan,
    StepPlan,
    Verdict,
)
from fdspec.spec_decode.draft_tree import GrowingTree
from fdspec.spec_decode.jacobi_window import JacobiWindow
from fdspec.spec_decode.ngram_pool import NgramPool
from fdspec.spec_decode.step_costs import StepCosts

SOURCE = "lookahead"
WINDOW = "lookahead_window"
"""Source of rows of the window, and of n-grams that come from there and not from the text."""

INITIAL_GAIN = 0.3
"""Tokens a step that a whole window is expected to bring before anything is known: more than the
0.17 to 0.25 of a model of 135M parameters, because larger ones foresee more."""

_MEMORY = 0.05
"""Weight of the newest step in the running average of that gain."""

_PAUSE = 256
"""Steps after which a window that did not pay is tried again."""


class _State:
    """What is known of one sequence."""

    __slots__ = ("columns", "gain", "num_idle", "pool", "salt", "window")

    def __init__(self, pool: NgramPool, salt: str) -> None:
        self.pool = pool
        self.salt = salt
        self.window: JacobiWindow | None = None
        self.columns = 0
        self.gain = INITIAL_GAIN
        self.num_idle = 0


class LookaheadProposer:
    """Lookahead decoding. Implements `core.protocols.Proposer`.

    A step has up to (N - 1) * (W + G) rows: the last committed token, up to G guesses of N - 1
    tokens each, and a window of N - 1 levels and W columns, all of them one tree in which equal
    branches are one. The window's rows are probes (see `Draft`).

    Where costs are known, the window has as many columns as are worth their rows, down to none.
    With w of W columns a gain of gain * log(1 + w) / log(1 + W) tokens a step is expected (gains
    are proportional to the logarithm of the rows), gain being what windows have brought so far in
    this sequence: accepted tokens of n-grams that the text did not have.
    """

    def __init__(
        self,
        *,
        level: int = 4,
        window: int = 5,
        guess_set_size: int = 5,
        num_speculative_tokens: int | None = None,
        eos_ids: Iterable[int] = (),
        costs: StepCosts | None = None,
    ) -> None:
        """Set the sizes.

        Args:
            level: N, length of the n-grams, at least 3.
            window: W, columns of the window.
            guess_set_size: G, n-grams that are kept for each first token.
            num_speculative_tokens: most tokens of a tree; None is (N - 1) * (W + G).
            eos_ids: tokens that end a text.
            costs: of steps on this machine; None always uses the whole window.
        """
        self._level = level
        self._columns = window
        self._guess_set_size = guess_set_size
        self._most = num_speculative_tokens or (level - 1) * (window + guess_set_size)
        self._eos_ids = frozenset(eos_ids)
        self._costs = costs
        self._states: dict[SequenceId, _State] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """A tree of guesses and window for each context for which there is one."""
        price = None if self._costs is None else self._costs.row_price(len(contexts))
        drafts = []
        for context in contexts:
            draft = self._tree(context, price)
            if draft is not None:
                drafts.append(draft)
        return drafts

    def observe(self, plan: StepPlan, output: ModelOutput, verdicts: Sequence[Verdict]) -> None:
        """Take in prompts chunk by chunk, and what the model said in the windows."""
        by_id = {verdict.sequence_id: verdict for verdict in verdicts}
        for index, sequence in enumerate(plan.sequences):
            if sequence.start < sequence.num_prompt:
                if sequence.params.max_draft_tokens != 0:
                    state = self._state(sequence.sequence_id, sequence.cache_salt)
                    if len(sequence.history) > state.pool.num_followed:
                        state.pool.follow(sequence.history)
                continue
            known = self._states.get(sequence.sequence_id)
            verdict = by_id.get(sequence.sequence_id)
            if known is None or known.window is None or verdict is None or verdict.finish:
                continue
            if known.columns > 0:
                end = int(output.row_splits[index + 1])
                self._advance(known, known.window, sequence, output, end)
                # The first new token is what `advance` has moved by.
                known.window.skip(len(verdict.kept))
            self._count(known, sequence, verdict)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drop the state of ended sequences; unknown ids are ignored."""
        for sequence_id in sequence_ids:
            self._states.pop(sequence_id, None)

    def _state(self, key: SequenceId, salt: str) -> _State:
        state = self._states.get(key)
        if state is None or state.salt != salt:
            state = _State(NgramPool(self._level, self._guess_set_size), salt)
            self._states[key] = state
        return state

    def _tree(self, context: DraftContext, price: float | None) -> Draft | None:
        key, tokens = context.sequence_id, context.tokens
        state = self._state(key, context.cache_salt)
        state.pool.follow(tokens)
        room = min(context.max_draft + context.max_probes, self._most)
        state.columns = self._wanted_columns(state, price)
        guesses = min(context.max_draft, room)
        if state.columns > 0:
            # Where there is not room for all, both get the share that they have of the whole.
            share = room * self._guess_set_size // (self._columns + self._guess_set_size)
            guesses = min(guesses, max(share, self._level - 1))
        tree = GrowingTree()
        _add_guesses(tree, state.pool, int(tokens[-1]), guesses)
        num_guesses = len(tree)
        if state.columns > 0:
            if state.window is None:
                fill = _random_tokens(key, tokens[: context.num_prompt])
                state.window = JacobiWindow(self._level, state.columns, fill)
            state.window.grow_into(tree, room, state.columns, WINDOW)
        if len(tree) == 0:
            return None
        return tree.draft(key, SOURCE, len(tree) - num_guesses)

    def _wanted_columns(self, state: _State, price: float | None) -> int:
        """How many columns are worth their rows.

        The most of gain * log(1 + w) / log(1 + W) - price * rows, with N - 1 rows a column, and a
        guess of N - 1 that would not be there without it.
        """
        if price is None:
            return self._columns
        rows = self._level - 1
        scale = state.gain / math.log1p(self._columns)
        columns = min(int(scale / (price * rows)), self._columns + 1) - 1
        if columns < 1 or scale * math.log1p(columns) <= price * rows * (columns + 1):
            return 0
        return columns

    def _advance(
        self,
        state: _State,
        window: JacobiWindow,
        sequence: SequencePlan,
        output: ModelOutput,
        end: int,
    ) -> None:
        """Let the window go on by what the model said; `end` is behind the sequence's rows."""
        tree = GrowingTree() if sequence.draft is None else GrowingTree.of(sequence.draft)
        rows = window.last_level_rows(tree)
        if len(rows) < min(window.width, 2):
            return
        first = end - sequence.num_draft_rows
        if output.best_tokens is not None:
            said = output.best_tokens[[first + row for row in rows]].tolist()
        else:
            said = [int(output.logits[first + row].argmax()) for row in rows]
        for ngram in window.advance(int(sequence.history[-1]), said, self._eos_ids):
            state.pool.add(ngram, is_text=False)
        window.widen(state.columns)

    def _count(self, state: _State, sequence: SequencePlan, verdict: Verdict) -> None:
        """Learn what the window brings, or that it has had its pause."""
        if state.columns == 0:
            state.num_idle += 1
            if state.num_idle >= _PAUSE:
                state.num_idle, state.gain = 0, INITIAL_GAIN
        elif sequence.draft is not None:
            sources = sequence.draft.sources or (sequence.draft.source,) * len(sequence.draft)
            brought = sum(sources[row] == WINDOW for row in verdict.kept)
            # What a smaller window brings says what a whole one would.
            scale = math.log1p(self._columns) / math.log1p(state.columns)
            state.gain += _MEMORY * (brought * scale - state.gain)


def _add_guesses(tree: GrowingTree, pool: NgramPool, token: int, max_rows: int) -> None:
    """The pool's guesses about what follows a token, the last one first, up to max_rows rows."""
    for guess in pool.guesses(token):
        row = -1
        for following in guess.tokens:
            if len(tree) >= max_rows and tree.find(row, following) is None:
                return
            row = tree.add(row, following, SOURCE if guess.is_text else WINDOW)


def _random_tokens(key: SequenceId, prompt: NDArray[np.int32]) -> Callable[[], int]:
    """Gives tokens of a prompt at random: by the sequence's name, and by nothing that samples."""
    source = random.Random(f"lookahead {key}")
    return lambda: int(prompt[source.randrange(len(prompt))])
