# SPDX-License-Identifier: Apache-2.0
"""The processor chain and keyed sampling: by hand, against the definition, bit for bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fdspec.ops import RowParams, processed_probabilities, sample_rows
from fdspec.ops.sample_rows import reference_noisy_scores, reference_processed_probabilities
from tests.ops.support import BACKENDS, assert_same_bits, call, running, settings

INF = np.inf
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 3.0},
    "top_k": {"temperature": 0.9, "top_k": 3},
    "large_top_k": {"top_k": 700},
    "top_p": {"temperature": 0.9, "top_p": 0.8},
    "tiny_top_p": {"top_p": 1e-6},
    "high_top_p": {"top_p": 0.9999999},
    "min_p": {"min_p": 0.05},
    "top_k_top_p": {"temperature": 0.9, "top_k": 8, "top_p": 0.7},
    "all": {"temperature": 1.2, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
}
VOCABULARIES = (1, 2, 15, 16, 17, 63, 64, 65, 1003)


def logits_of(rows: int, vocab: int, seed: int = 0, scale: float = 3.0) -> Any:
    generator = np.random.default_rng([seed, rows, vocab])
    return generator.normal(0, scale, (rows, vocab)).astype(np.float32)


def sample(backend: str, logits: Any, params: RowParams) -> Any:
    return call(backend, "sample_rows", "sample_rows", logits, params)


def law_of(backend: str, logits: Any, params: RowParams) -> Any:
    return call(backend, "sample_rows", "processed_probabilities", logits, params)


def with_history(params: RowParams, vocab: int, seed: int = 0) -> RowParams:
    """Penalties, biases and a mask of random tokens for every row."""
    generator = np.random.default_rng([seed, vocab])
    rows = params.num_rows
    size = min(vocab, 9)
    ids = [generator.permutation(vocab)[:size] for _ in range(rows)]
    bias_ids = generator.integers(0, vocab, (rows, 4))
    bias_values = generator.normal(0, 2, (rows, 4))
    bias_values[:, 0] = -INF
    mask = generator.integers(0, 2**32, (rows, -(-vocab // 32)), dtype=np.uint32)

    def uniform(low: float, high: float) -> Any:
        return generator.uniform(low, high, rows).astype(np.float32)

    return dataclasses.replace(
        params,
        repetition_penalty=uniform(0.7, 1.6),
        presence_penalty=uniform(-1, 1),
        frequency_penalty=uniform(-1, 1),
        count_splits=np.arange(rows + 1) * size,
        count_ids=np.concatenate([np.zeros(0), *ids]).astype(np.int32),
        output_counts=generator.integers(0, 4, rows * size).astype(np.int32),
        in_prompt=generator.integers(0, 2, rows * size).astype(np.uint8),
        bias_splits=np.arange(rows + 1) * 4,
        bias_ids=bias_ids.ravel().astype(np.int32),
        bias_values=bias_values.ravel().astype(np.float32),
        mask=mask,
    )


def check_against_the_definition(backend: str, logits: Any, params: RowParams) -> None:
    law = law_of(backend, logits, params)
    expected = reference_processed_probabilities(logits, params)
    assert law.dtype == np.float32
    np.testing.assert_array_equal(law > 0, expected > 0)
    np.testing.assert_allclose(law, expected, rtol=2e-5, atol=1e-7)
    chosen = sample(backend, logits, params)
    assert chosen.dtype == np.int32
    for row, token in enumerate(chosen):
        scores = reference_noisy_scores(logits[row], params.row(row))
        # Equal to the definition, but for ties that float32 cannot see.
        assert scores.max() - scores[token] <= 1e-5 * max(1.0, abs(scores.max()))


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("backend", BACKENDS)
def test_matches_the_definition(backend: str, mode: dict[str, Any], vocab: int) -> None:
    rows = 5
    params = RowParams.alike(rows, **mode, seed=2**63 + 5, choice=2, position=np.arange(rows))
    check_against_the_definition(backend, logits_of(rows, vocab), params)


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("backend", BACKENDS)
def test_matches_the_definition_with_history(
    backend: str, mode: dict[str, Any], vocab: int
) -> None:
    rows = 5
    params = RowParams.alike(rows, **mode, seed=77, position=np.arange(rows))
    check_against_the_definition(backend, logits_of(rows, vocab), with_history(params, vocab))


@pytest.mark.parametrize("scale", [0.1, 3.0])
@pytest.mark.parametrize("mode", ["temperature", "top_k", "top_p", "all"])
def test_large_vocabulary(mode: str, scale: float) -> None:
    logits = logits_of(1, 262_144, scale=scale)
    params = RowParams.alike(1, **MODES[mode], seed=3)
    for backend in BACKENDS[1:]:
        check_against_the_definition(backend, logits, params)


@pytest.mark.parametrize("top_p", [1e-3, 0.1, 0.5, 0.97])
@pytest.mark.parametrize("scale", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_winners_outside_the_mass_are_passed_over(backend: str, scale: float, top_p: float) -> None:
    # Often the most likely token with noise is none of those that top_p keeps.
    rows = 60
    params = RowParams.alike(rows, top_p=top_p, seed=5, position=np.arange(rows))
    check_against_the_definition(backend, logits_of(rows, 300, scale=scale), params)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mass_that_ends_between_two_equal_tokens(backend: str) -> None:
    # The weights of the last tokens are 0, but only to the bit: a rough total leaves it open
    # whether half of it is more than two of the first four tokens.
    rows = 200
    logits = np.tile(np.array([[1.0] * 4 + [-40.0] * 60], np.float32), (rows, 1))
    params = RowParams.alike(rows, top_p=0.5, seed=8, position=np.arange(rows))
    assert set(sample(backend, logits, params).tolist()) == {0, 1}


PROBABILITIES = np.array([[0.15, 0.5, 0.05, 0.3]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ({}, [0.15, 0.5, 0.05, 0.3]),
        ({"temperature": 0.0}, [0, 1, 0, 0]),
        ({"temperature": 0.5}, [0.0225 / 0.365, 0.25 / 0.365, 0.0025 / 0.365, 0.09 / 0.365]),
        ({"top_k": 2}, [0, 0.625, 0, 0.375]),
        ({"top_k": 9}, [0.15, 0.5, 0.05, 0.3]),
        ({"top_p": 0.49}, [0, 1, 0, 0]),
        ({"top_p": 0.51}, [0, 0.625, 0, 0.375]),
        ({"top_p": 0.81}, [0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95]),
        ({"min_p": 0.31}, [0, 0.625, 0, 0.375]),
        ({"min_p": 0.29}, [0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95]),
        # top_p counts the mass of what top_k left: 0.5 / 0.8 is enough for 0.6.
        ({"top_k": 2, "top_p": 0.6}, [0, 1, 0, 0]),
        ({"top_k": 3, "min_p": 0.5}, [0, 0.625, 0, 0.375]),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_laws_by_hand(backend: str, mode: dict[str, Any], expected: list[float]) -> None:
    law = law_of(backend, np.log(PROBABILITIES).astype(np.float32), RowParams.alike(1, **mode))
    np.testing.assert_allclose(law[0], expected, rtol=1e-5)
    assert np.count_nonzero(law) == np.count_nonzero(expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ties_go_to_lower_ids(backend: str) -> None:
    logits = np.array([[1, 2, 2, 0, 2, 2]], np.float32)
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"temperature": 0.0}, [1]),
        ({"top_k": 2}, [1, 2]),
        ({"top_k": 3}, [1, 2, 4]),
        ({"top_k": 4, "top_p": 0.5}, [1, 2]),
        ({"top_k": 4, "top_p": 0.51}, [1, 2, 4]),
    ]
    for mode, kept in cases:
        law = law_of(backend, logits, RowParams.alike(1, **mode))
        assert np.flatnonzero(law[0]).tolist() == kept, mode
    zeros = np.array([[-0.0, 0.0, -0.0, 0.0]], np.float32)
    assert np.flatnonzero(law_of(backend, zeros, RowParams.alike(1, top_k=2))).tolist() == [0, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_history_by_hand(backend: str) -> None:
    # Token: 0 in the prompt only, 1 twice in the output, 2 in both once, 3 never, 4 biased twice,
    # 5 barred by a bias, 6 by the mask.
    logits = np.array([[2.0, 2.0, -1.0, 0.5, 0.0, 9.0, 9.0]], np.float32)
    params = dataclasses.replace(
        RowParams.alike(1),
        repetition_penalty=np.array([2.0], np.float32),
        presence_penalty=np.array([0.25], np.float32),
        frequency_penalty=np.array([0.5], np.float32),
        count_splits=np.array([0, 3]),
        count_ids=np.array([0, 1, 2], np.int32),
        output_counts=np.array([0, 2, 1], np.int32),
        in_prompt=np.array([1, 0, 1], np.uint8),
        bias_splits=np.array([0, 3]),
        bias_ids=np.array([4, 5, 4], np.int32),
        bias_values=np.array([1.0, -INF, 0.5], np.float32),
        mask=np.array([[0b0111111]], np.uint32),
    )
    scores = np.array([1.0, 1.0 - 1.0 - 0.25, -2.0 - 0.5 - 0.25, 0.5, 1.5, -INF, -INF])
    expected = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(law_of(backend, logits, params)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_impossible_tokens(backend: str) -> None:
    logits = np.array(
        [
            [-INF, np.nan, 1.0, -INF],
            [-INF, -INF, -INF, -INF],
            [np.nan, np.nan, np.nan, np.nan],
            [0.0, INF, INF, 1.0],
            [np.nan, -INF, -1e37, -INF],
        ],
        np.float32,
    )
    for mode in MODES.values():
        for seed in range(20):
            params = RowParams.alike(5, **mode, seed=seed)
            chosen = sample(backend, logits, params)
            assert chosen[[0, 1, 2, 4]].tolist() == [2, 0, 0, 2]
            assert chosen[3] in (1, 2)
        law = law_of(backend, logits, params)
        assert np.isfinite(law).all()
        np.testing.assert_allclose(law.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_that_bars_everything_gives_token_0(backend: str) -> None:
    params = dataclasses.replace(RowParams.alike(1), mask=np.zeros((1, 1), np.uint32))
    assert sample(backend, np.ones((1, 20), np.float32), params).tolist() == [0]


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
def test_levels_threads_and_other_rows_change_no_bit(mode: dict[str, Any]) -> None:
    rows, vocab = 24, 1003
    logits = logits_of(rows, vocab)
    params = with_history(
        RowParams.alike(rows, **mode, seed=np.arange(rows), position=np.arange(rows)), vocab
    )
    tokens, law = sample_rows(logits, params), processed_probabilities(logits, params)
    for isa, num_threads in settings():
        with running(isa, num_threads):
            assert_same_bits(sample_rows(logits, params), tokens)
            assert_same_bits(processed_probabilities(logits, params), law)
    for row in range(rows):
        assert_same_bits(sample_rows(logits[row : row + 1], params.row(row)), tokens[row : row + 1])
        assert_same_bits(
            processed_probabilities(logits[row : row + 1], params.row(row)), law[row : row + 1]
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_different_modes(backend: str) -> None:
    modes = [*MODES.values(), {}]
    columns = {
        name: np.array([mode.get(name, default) for mode in modes])
        for name, default in {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}.items()
    }
    params = RowParams.alike(len(modes), **columns, seed=4, position=9)
    check_against_the_definition(backend, logits_of(len(modes), 300), params)


@pytest.mark.parametrize("rows", [0, 600])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows_and_many_rows(backend: str, rows: int) -> None:
    params = RowParams.alike(rows, temperature=0.8, top_p=0.9, position=np.arange(rows))
    check_against_the_definition(backend, logits_of(rows, 40), params)


@pytest.mark.parametrize("mode", [{}, {"top_k": 4}, {"temperature": 0.7, "top_p": 0.85}])
def test_tokens_follow_the_law(mode: dict[str, Any]) -> None:
    num_rows = 40_000
    row = logits_of(1, 6, scale=1.0)
    logits = np.repeat(row, num_rows, axis=0)
    params = RowParams.alike(num_rows, **mode, seed=11, position=np.arange(num_rows))
    counts = np.bincount(sample_rows(logits, params), minlength=6)
    law = processed_probabilities(row, RowParams.alike(1, **mode))[0]
    assert not counts[law == 0].any()
    assert np.abs(counts / num_rows - law).max() < 4 * np.sqrt(0.25 / num_rows)


def test_every_key_changes_the_noise() -> None:
    rows = 200
    logits = np.zeros((rows, 1000), np.float32)
    keys = [(1, 0, 0), (2, 0, 0), (1 + 2**32, 0, 0), (1, 1, 0), (1, 0, 1)]
    samples = {
        tuple(
            sample_rows(
                logits,
                RowParams.alike(
                    rows, seed=seed, choice=choice, position=position + 10 * np.arange(rows)
                ),
            )
        )
        for seed, choice, position in keys
    }
    assert len(samples) == len(keys)


def test_arguments_are_not_changed() -> None:
    logits = logits_of(3, 50)
    params = with_history(RowParams.alike(3, top_p=0.9), 50)
    before = logits.copy()
    sample_rows(logits, params)
    processed_probabilities(logits, params)
    assert_same_bits(logits, before)


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("temperature", [np.nan, 1], ValueError, r"params.temperature\[0\]"),
        ("temperature", [1, -1], ValueError, r"params.temperature\[1\]"),
        ("temperature", [1], ValueError, "temperature: expected shape"),
        ("top_k", [-1, 0], ValueError, r"params.top_k\[0\]"),
        ("top_p", [0, 1], ValueError, r"params.top_p\[0\]"),
        ("min_p", [0, 2], ValueError, r"params.min_p\[1\]"),
        ("repetition_penalty", [0, 1], ValueError, r"params.repetition_penalty\[0\]"),
        ("count_ids", [3, 20], ValueError, r"params.count_ids\[1\]: token 20 is outside"),
        ("count_ids", [3], ValueError, "output_counts"),
        ("count_splits", [0, 1, 1], ValueError, "params.count_splits: must run from 0 to 2"),
        ("count_splits", [0, 3, 2], ValueError, r"params.count_splits\[1\]"),
        ("bias_ids", [-1], ValueError, r"params.bias_ids\[0\]: token -1 is outside"),
        ("mask", [[1, 2], [3, 4]], ValueError, "mask"),
    ],
)
def test_errors_name_the_parameter(
    field: str, value: list[Any], error: type[Exception], message: str
) -> None:
    params = dataclasses.replace(
        RowParams.alike(2),
        count_splits=np.array([0, 1, 2]),
        count_ids=np.array([3, 4], np.int32),
        output_counts=np.ones(2, np.int32),
        in_prompt=np.ones(2, np.uint8),
        bias_splits=np.array([0, 0, 1]),
        bias_ids=np.array([7], np.int32),
        bias_values=np.ones(1, np.float32),
        mask=np.ones((2, 1), np.uint32),
    )
    logits = logits_of(2, 20)
    sample_rows(logits, params)
    dtype = getattr(params, field).dtype
    broken = dataclasses.replace(params, **{field: np.array(value, dtype)})
    for op in (sample_rows, processed_probabilities):
        with pytest.raises(error, match=f"^{message}"):
            op(logits, broken)


def test_errors_name_the_logits() -> None:
    params = RowParams.greedy(2)
    with pytest.raises(TypeError, match="^logits"):
        sample_rows(np.zeros((2, 5)), params)
    with pytest.raises(ValueError, match="^logits: the vocabulary is empty"):
        sample_rows(np.zeros((2, 0), np.float32), params)
    with pytest.raises(ValueError, match="^temperature"):
        sample_rows(np.zeros((3, 5), np.float32), params)


def peaked_logits(rows: int, vocab: int, *, decay: float) -> Any:
    """Rows whose scores fall off like those of language models: a short head and a long tail."""
    generator = np.random.default_rng([rows, vocab])
    ranks = np.stack([generator.permutation(vocab) for _ in range(rows)])
    noise = generator.normal(0, 0.3, (rows, vocab))
    return (20 - decay * np.log1p(ranks) + noise).astype(np.float32)


@pytest.mark.parametrize("decay", [0.9, 2.0, 5.0])
@pytest.mark.parametrize("top_p", [0.3, 0.95, 0.999])
def test_top_p_keeps_the_exact_prefix_of_heads_and_tails(top_p: float, decay: float) -> None:
    """Whether rough weights of the tail settle the prefix, or exact ones must."""
    rows, vocab = 6, 20_011
    logits = peaked_logits(rows, vocab, decay=decay)
    params = RowParams.alike(rows, temperature=0.9, top_p=top_p, seed=5, position=np.arange(rows))
    for backend in BACKENDS[1:]:
        check_against_the_definition(backend, logits, params)


@pytest.mark.parametrize("temperature", [0.05, 0.8, 2.0, 20.0])
def test_noise_that_is_left_out_could_not_have_won(temperature: float) -> None:
    """Wide and narrow rows: noise of single tokens and of neighbours, few and many of them."""
    rows, vocab = 40, 5003
    for logits in (peaked_logits(rows, vocab, decay=3.0), logits_of(rows, vocab, scale=4.0)):
        params = RowParams.alike(
            rows, temperature=temperature, seed=np.arange(rows), position=7, choice=1
        )
        for backend in BACKENDS[1:]:
            chosen = sample(backend, logits, params)
            for row, token in enumerate(chosen):
                scores = reference_noisy_scores(logits[row], params.row(row))
                assert scores.max() - scores[token] <= 1e-5 * max(1.0, abs(scores.max()))


@pytest.mark.parametrize("k", [1, 63, 64, 65, 300])
def test_top_k_on_a_large_vocabulary(k: int) -> None:
    rows, vocab = 3, 20_011
    logits = peaked_logits(rows, vocab, decay=2.0).round(2)
    logits[1, 100:] = -INF
    logits[2, ::64] += 9  # the best ones all in one of the sets that the bound is made of
    params = RowParams.alike(rows, top_k=k, seed=3)
    for backend in BACKENDS[1:]:
        check_against_the_definition(backend, logits, params)


def test_the_largest_logit_at_every_place() -> None:
    vocab = 2100
    logits = np.zeros((vocab, vocab), np.float32)
    np.fill_diagonal(logits, 1.0)
    assert sample_rows(logits, RowParams.greedy(vocab)).tolist() == list(range(vocab))
    largest = np.finfo(np.float32).max
    ties = np.array([[0, largest, INF, 1], [INF, largest, 0, INF]], np.float32)
    assert sample_rows(ties, RowParams.greedy(2)).tolist() == [1, 0]
