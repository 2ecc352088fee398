# SPDX-License-Identifier: Apache-2.0
"""The rules of rejection, at their edges."""

from __future__ import annotations

import numpy as np
import pytest

from fdspec.spec_decode.acceptance import KeyedOracle, Law, accepts, residual, walk, without

BELOW_ONE = 1 - 2.0**-25  # rounds to 1 in float32


@pytest.mark.parametrize("coin", [0.0, 0.5, BELOW_ONE, float(np.float32(BELOW_ONE))])
def test_no_coin_accepts_probability_zero(coin: float) -> None:
    assert not accepts(coin, 0.0)
    assert not accepts(coin, 0.0, 0.5)


@pytest.mark.parametrize("coin", [0.0, 0.5, BELOW_ONE, 1.0])
@pytest.mark.parametrize("probability", [1.0, 0.25])
def test_every_coin_accepts_equal_laws(coin: float, probability: float) -> None:
    assert accepts(coin, probability, probability)


def test_acceptance_frequency_is_the_ratio() -> None:
    coins = (np.arange(4096) + 0.5) / 4096
    accepted = [accepts(coin, 0.15, 0.6) for coin in coins]
    assert np.mean(accepted) == 0.25


def test_token_outside_its_own_draft_law_is_refused() -> None:
    assert not accepts(0.0, 0.9, 0.0)


def test_residual_and_without() -> None:
    law = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(residual(law, np.array([0.25, 0.55, 0.2])), [1, 0, 0])
    np.testing.assert_allclose(without(law, 1), [5 / 7, 0, 2 / 7])
    np.testing.assert_array_equal(law, [0.5, 0.3, 0.2])


def test_nothing_left_falls_back_to_the_law_itself() -> None:
    law = np.array([0.0, 1.0, 0.0])
    np.testing.assert_array_equal(without(law, 1), law)
    np.testing.assert_array_equal(residual(law, law), law)


@pytest.mark.parametrize("seed", range(64))
def test_keyed_walk_never_emits_probability_zero(seed: int) -> None:
    laws = np.array([[0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1]], dtype=np.float32)
    accepted, token = walk(laws, [1, 0], [-1, 0], KeyedOracle(seed, 0, 5))
    assert accepted in ([0], [0, 1])
    assert (accepted, token) in (([0], 2), ([0, 1], 3))


def test_keyed_walk_follows_the_law() -> None:
    laws = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]], dtype=np.float32)
    counts = np.zeros((3, 3))
    num_walks = 4000
    for seed in range(num_walks):
        accepted, token = walk(laws, [1], [-1], KeyedOracle(seed, 0, 0))
        if accepted:
            counts[1, token] += 1
        else:
            counts[token, 0] += 1
    expected = np.array([[0.5, 0, 0], [0.03, 0.06, 0.21], [0.2, 0, 0]])
    assert np.abs(counts / num_walks - expected).max() < 0.03


def test_keyed_decisions_repeat_and_depend_on_every_key() -> None:
    def coins(seed: int, choice: int, position: int) -> list[bool]:
        oracle = KeyedOracle(seed, choice, position)
        return [oracle.accepts(0, token, 0.5, 1.0) for token in range(64)]

    assert coins(1, 2, 3) == coins(1, 2, 3)
    assert len({tuple(coins(*key)) for key in [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]}) == 4


def test_ids_outside_the_vocabulary_are_skipped() -> None:
    law = np.array([[1.0, 0.0]])
    assert walk(np.repeat(law, 4, axis=0), [-1, 2, 0], [-1, -1, -1], KeyedOracle(0, 0, 0)) == (
        [2],
        0,
    )


@pytest.mark.parametrize("parents", [[-1, 0, 1, 2], [-1, -1, -1, 0], [-1, -1, 0, 1]])
def test_own_tokens_spare_draws_and_change_nothing(parents: list[int]) -> None:
    """Where draws are argmaxes, each row's own token stands for the draw unless it was refused."""
    num_draws = 0

    class Counting(KeyedOracle):
        def draw(self, depth: int, law: Law) -> int:
            nonlocal num_draws
            num_draws += 1
            return super().draw(depth, law)

    depth = [0]
    for parent in parents:
        depth.append(1 + depth[1 + parent])
    for seed in range(300):
        generator = np.random.default_rng(seed)
        laws = generator.dirichlet(np.full(4, 0.7), 5).astype(np.float32)
        tokens = generator.integers(0, 4, 4).tolist()
        oracle = Counting(seed, 0, 3)
        expected = walk(laws, tokens, parents, oracle)
        own = [oracle.draw(depth[row], laws[row]) for row in range(5)]
        before = num_draws
        assert walk(laws, tokens, parents, oracle, own=own) == expected
        spared = num_draws == before
        assert spared or own[1 + expected[0][-1] if expected[0] else 0] != expected[1]
    assert num_draws < 300 * 6 + 150, "most are spared"
