# SPDX-License-Identifier: Apache-2.0
"""Rejection: the rules that accept or refuse a draft token so that the target's law is kept.

Owns the arithmetic on laws and the walk down a draft; never computes a law and holds no random
state. Called by the verifier for `verify_strategy: rejection`, and by the test that enumerates
every branch of the walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fdspec.ops import RowParams, sample_rows
from fdspec.utils.philox import acceptance_coin

Law = NDArray[np.floating]
"""[vocab], a probability for each token; the sum is 1 up to rounding."""

_LARGEST_COIN = float(np.nextafter(np.float32(1), np.float32(0)))


class Oracle(Protocol):
    """Source of the random decisions of a walk. `depth` counts the drafts accepted before."""

    def accepts(self, depth: int, token: int, target: float, draft: float) -> bool:
        """True with probability min(1, target / draft)."""
        ...

    def draw(self, depth: int, law: Law) -> int:
        """A token of this law."""
        ...


def accepts(coin: float, target: float, draft: float = 1.0) -> bool:
    """The rule of acceptance: u * q(d) < p(d), strictly.

    Strictness makes p(d) = 0 never accepted, even by u = 0, and p(d) = q(d) always accepted.

    Args:
        coin: uniform in [0, 1); a value that rounding carried to 1 counts as the float32 below 1.
        target: p(d), probability of the draft token under the target's law.
        draft: q(d), probability with which it was drafted; 1 for a draft that is not random.

    Returns:
        True if the draft token is accepted. A token that its own law rules out (draft == 0) is
        refused: then the stored law is not the one it was drawn from.
    """
    return draft > 0.0 and min(coin, _LARGEST_COIN) * draft < target


def residual(law: Law, draft_law: Law) -> Law:
    """The law to go on with after a refusal: max(p - q, 0), normalised.

    Args:
        law: p, [vocab].
        draft_law: q, [vocab], the law that the refused token was drawn from.

    Returns:
        [vocab]; p itself if rounding left nothing of the difference.
    """
    rest = np.maximum(np.asarray(law, np.float64) - draft_law, 0.0)
    total = float(rest.sum())
    return rest / total if total > 0.0 else law


def without(law: Law, token: int) -> Law:
    """`residual` for a draft that is not random: p with the refused token removed.

    Args:
        law: p, [vocab].
        token: the refused token.

    Returns:
        [vocab]; p itself if the token was all there was.
    """
    rest = np.array(law, np.float64)
    rest[token] = 0.0
    total = float(rest.sum())
    return rest / total if total > 0.0 else law


def walk(
    laws: Sequence[Law] | Law,
    tokens: Sequence[int] | NDArray[np.int32],
    parents: Sequence[int] | NDArray[np.int32],
    oracle: Oracle,
    *,
    draft_laws: Sequence[Law | None] | None = None,
    own: Sequence[int] | None = None,
) -> tuple[list[int], int]:
    """Go down a draft chain or tree, accept what the rules accept, then draw one token more.

    The children of a row are tried in order of index. A refused child is taken out of the row's
    law before its sibling is tried: testing siblings against the unchanged law would accept too
    often. Ids outside the vocabulary are never accepted.

    Args:
        laws: [1 + n] laws of [vocab], after the whole processor chain: row 0 follows the last
            committed token, row 1 + i follows draft token i.
        tokens: [n] draft tokens.
        parents: [n] index of the parent, which comes first; -1 is the last committed token.
        oracle: makes the random decisions.
        draft_laws: [n] the law that each token was drawn from, given its elder siblings; None for
            a token that is not random. Leaving it out means that none is.
        own: [1 + n] what the oracle would draw from each row's law as the argmax of noisy scores.
            Taking tokens out of a law does not change the argmax of the rest, so that most draws
            can be spared.

    Returns:
        Indices of the accepted draft tokens, in path order; and the recovered or bonus token.
    """
    accepted: list[int] = []
    current, law = -1, laws[0]
    removed: set[int] | None = set()  # None: the law has changed in other ways too
    for index, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        # Children come after their parent, so one pass meets the whole path.
        if parent != current or not 0 <= token < len(law):
            continue
        draft_law = draft_laws[index] if draft_laws is not None else None
        drafted = 1.0 if draft_law is None else float(draft_law[token])
        if oracle.accepts(len(accepted), int(token), float(law[token]), drafted):
            accepted.append(index)
            current, law = index, laws[index + 1]
            removed = set()
        elif draft_law is None:
            law = without(law, int(token))
            if removed is not None:
                removed.add(int(token))
        else:
            law = residual(law, draft_law)
            removed = None
    if own is not None and removed is not None and own[current + 1] not in removed:
        return accepted, own[current + 1]
    return accepted, oracle.draw(len(accepted), law)


class KeyedOracle:
    """Decisions keyed by (seed, choice, output position, token), so that a rerun repeats them.

    Coins and the noise of the final draw come from different Philox streams, which makes them
    independent. A drafter that draws at random must use a third one.

    Args:
        seed: key of the request, 0 .. 2**64 - 1.
        choice: index of the choice.
        position: output index of the token that row 0 chooses.
    """

    def __init__(self, seed: int, choice: int, position: int) -> None:
        self._seed = seed
        self._choice = choice
        self._position = position

    def accepts(self, depth: int, token: int, target: float, draft: float) -> bool:
        """See `Oracle.accepts`."""
        position = self._position + depth
        coin = acceptance_coin(token, seed=self._seed, choice=self._choice, position=position)
        return accepts(coin, target, draft)

    def draw(self, depth: int, law: Law) -> int:
        """See `Oracle.draw`: argmax of log-probability + Gumbel noise, by `sample_rows`."""
        logits = np.full((1, len(law)), -np.inf, np.float32)
        possible = np.flatnonzero(law)
        logits[0, possible] = np.log(law[possible])
        params = RowParams.alike(
            1,
            temperature=1.0,
            seed=self._seed,
            choice=self._choice,
            position=self._position + depth,
        )
        return int(sample_rows(logits, params)[0])
