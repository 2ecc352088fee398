# SPDX-License-Identifier: Apache-2.0
"""Verdicts: what is accepted, where it ends, what is counted and reported."""

from dataclasses import replace

import numpy as np
import pytest

from fdspec.core import FinishReason, ModelOutput, SamplingParams
from fdspec.spec_decode.verifier import SpeculativeVerifier
from tests.spec_decode.plans import GREEDY, KEY, decoding, output_of, peaked, step_of

VOCAB = 16
EOS = 0
LETTERS = [b"", *(bytes([96 + i]) for i in range(1, VOCAB))]
SAMPLED = SamplingParams(max_tokens=100, seed=3)


def verifier(**options):
    return SpeculativeVerifier(
        vocab_size=VOCAB, eos_ids=[EOS], token_bytes=LETTERS, max_model_len=1000, **options
    )


def verify(sequence, logits, **options):
    plan = step_of(sequence)
    (verdict,) = verifier(**options).verify(plan, output_of(plan, logits))
    return verdict


@pytest.mark.parametrize(
    ("targets", "tokens", "kept"),
    [
        ([1, 2, 3, 4], (1, 2, 3, 4), (0, 1, 2)),  # all accepted, and the bonus
        ([1, 2, 9, 4], (1, 2, 9), (0, 1)),  # the recovered token, at the third
        ([9, 2, 3, 4], (9,), ()),  # draft[0] is verified like any other
        ([1, 1, 3, 4], (1, 1), (0,)),  # agreeing again later does not count
    ],
)
def test_chain(targets, tokens, kept):
    verdict = verify(decoding((5,), (6,), draft=(1, 2, 3)), peaked(targets, VOCAB))
    assert (verdict.tokens, verdict.kept, verdict.num_drafted) == (tokens, kept, 3)
    assert verdict.finish is None and verdict.logprobs is None


def test_tree_follows_the_target():
    # 0: a   1: b (root)   2: c after a   3: d after b   4: e after d
    sequence = decoding((5,), (6,), draft=(1, 2, 3, 4, 5), parents=[-1, -1, 0, 1, 3])
    verdict = verify(sequence, peaked([2, 9, 4, 9, 5, 7], VOCAB))
    assert (verdict.tokens, verdict.kept) == ((2, 4, 5, 7), (1, 3, 4))
    verdict = verify(sequence, peaked([1, 9, 4, 9, 5, 7], VOCAB))
    assert (verdict.tokens, verdict.kept) == ((1, 9), (0,))


def test_sequences_of_a_batch_do_not_mix():
    first = decoding((5,), (6,), draft=(1, 2), key=("a", 0))
    second = decoding((5,), (), key=("b", 0))
    third = decoding((5,), (6,), draft=(3,), key=("c", 1))
    plan = step_of(first, second, third)
    logits = peaked([1, 9, 9, 4, 3, 8], VOCAB)
    verdicts = verifier().verify(plan, output_of(plan, logits))
    assert [(v.sequence_id, v.tokens) for v in verdicts] == [
        (("a", 0), (1, 9)),
        (("b", 0), (4,)),
        (("c", 1), (3, 8)),
    ]


@pytest.mark.parametrize(
    ("params", "tokens", "kept", "drafted", "finish", "reason"),
    [
        ({}, (1, 2, 0), (0, 1), 2, FinishReason.STOP, None),
        ({"ignore_eos": True}, (1, 2, 0, 4, 5), (0, 1, 2, 3), 4, None, None),
        ({"stop_token_ids": (2,)}, (1, 2), (0,), 1, FinishReason.STOP, 2),
        ({"stop": ("fab",)}, (1, 2), (0,), 1, FinishReason.STOP, "fab"),
        ({"stop": ("fa",)}, (1,), (), 0, FinishReason.STOP, "fa"),
        ({"max_tokens": 4}, (1, 2, 0), (0, 1), 2, FinishReason.STOP, None),
        ({"max_tokens": 3}, (1, 2), (0,), 1, FinishReason.LENGTH, None),
    ],
)
def test_what_follows_the_first_stop_leaves_no_trace(params, tokens, kept, drafted, finish, reason):
    """A stop inside an accepted run: by EOS, id, string or length."""
    values = replace(GREEDY, logprobs=0, **params)
    sequence = decoding((5,), (6,), draft=(1, 2, 0, 4), params=values)
    verdict = verify(sequence, peaked([1, 2, 0, 4, 5], VOCAB))
    assert verdict.tokens == tokens and verdict.kept == kept and verdict.num_drafted == drafted
    assert (verdict.finish, verdict.stop_reason) == (finish, reason)
    assert [entry.token_id for entry in verdict.logprobs or ()] == list(tokens)
    assert len(verdict.tokens) == len(verdict.kept) + 1


def test_only_tree_nodes_up_to_the_stop_count_as_drafted():
    sequence = decoding((5,), (6,), draft=(1, 3, 0, 4, 7), parents=[-1, -1, 0, 2, 1])
    verdict = verify(sequence, peaked([1, 0, 9, 4, 8, 8], VOCAB))
    assert (verdict.tokens, verdict.kept, verdict.num_drafted) == ((1, 0), (0,), 2)


def test_a_rejected_eos_ends_nothing():
    verdict = verify(decoding((5,), (6,), draft=(EOS, EOS)), peaked([3, 4, 5], VOCAB))
    assert (verdict.tokens, verdict.finish) == ((3,), None)


@pytest.mark.parametrize("min_tokens", range(1, 6))
def test_min_tokens_on_draft_rows(min_tokens):
    """The model would end at output index 2; EOS is in the draft."""
    logits = peaked([1, EOS, EOS, EOS, EOS, EOS], VOCAB)
    logits[:, 4] = 4.0
    params = replace(GREEDY, min_tokens=min_tokens)
    sequence = decoding((5,), (6,), draft=(1, EOS, EOS, EOS, EOS), params=params)
    verdict = verify(sequence, logits)
    first_allowed = max(min_tokens, 2)
    if first_allowed == 2:
        assert (verdict.tokens, verdict.finish) == ((1, EOS), FinishReason.STOP)
    else:
        assert (verdict.tokens, verdict.finish) == ((1, 4), None)


@pytest.mark.parametrize("outside", [VOCAB, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED, replace(SAMPLED, presence_penalty=1.0)])
@pytest.mark.parametrize("strategy", ["target_match", "greedy", "rejection", "topp"])
def test_ids_outside_the_vocabulary_are_never_accepted(outside, params, strategy):
    sequence = decoding((5,), (6,), draft=(outside, 1), params=params)
    verdict = verify(sequence, peaked([1, 2, 3], VOCAB), verify_strategy=strategy)
    assert verdict.kept == () and 0 <= verdict.tokens[0] < VOCAB


@pytest.mark.parametrize("strategy", ["target_match", "greedy", "rejection", "topp"])
@pytest.mark.parametrize("policy", ["normal", "accept_all", "reject_all"])
def test_best_tokens_are_as_good_as_logits(strategy, policy):
    plan = step_of(
        decoding((5,), (6,), draft=(1, 2, 3, 4, 5), parents=[-1, -1, 0, 1, 3], key=("a", 0)),
        decoding((5,), (), key=("b", 0)),
        decoding((5,), (6,), draft=(3, EOS), key=("c", 1)),
    )
    output = output_of(plan, peaked([2, 9, 4, 9, 5, 7, 4, 3, EOS, 8], VOCAB))
    best = ModelOutput(
        output.logits[:0], output.row_splits, output.logits.argmax(axis=1).astype(np.int32)
    )
    options = {"verify_strategy": strategy, "accept_policy": policy}
    expected = verifier(**options).verify(plan, output)
    assert verifier(**options).verify(plan, best) == expected
    assert len(expected) == 3


# -- sampling -------------------------------------------------------------------------------------


def noise_logits(rows, seed=0):
    return np.random.default_rng(seed).normal(0, 2, (rows, VOCAB)).astype(np.float32)


def test_seeded_tokens_do_not_depend_on_the_draft():
    logits = noise_logits(5)
    plain = [
        verify(decoding((5,), [6] * (1 + row), params=SAMPLED), logits[row : row + 1]).tokens[0]
        for row in range(5)
    ]
    for draft in (plain[:4], [9, 9, 9, 9], [plain[0], 9, plain[2], 9], [*plain[:3], 15]):
        verdict = verify(decoding((5,), (6,), draft=draft, params=SAMPLED), logits)
        assert list(verdict.tokens) == plain[: len(verdict.tokens)]
        agreed = next((i for i, (a, b) in enumerate(zip(draft, plain, strict=False)) if a != b), 4)
        assert len(verdict.tokens) == agreed + 1


def test_each_choice_and_each_seed_has_noise_of_its_own():
    logits = np.zeros((1, VOCAB), np.float32)
    picks = {
        (seed, choice): verify(
            decoding((5,), (6,), params=replace(SAMPLED, seed=seed), key=("r", choice)), logits
        ).tokens[0]
        for seed in range(6)
        for choice in range(6)
    }
    assert len(set(picks.values())) > 8
    again = verify(decoding((5,), (6,), params=replace(SAMPLED, seed=2), key=("x", 3)), logits)
    assert again.tokens[0] == picks[2, 3], "the name of the request does not matter"


def test_greedy_strategy_ignores_the_temperature():
    params = replace(SAMPLED, temperature=5.0)
    for seed in range(20):
        sequence = decoding((5,), (6,), params=replace(params, seed=seed))
        assert verify(sequence, peaked([7], VOCAB), verify_strategy="greedy").tokens == (7,)


@pytest.mark.parametrize("strategy", ["target_match", "rejection"])
@pytest.mark.parametrize("parents", [None, [-1, -1]])
def test_lossless_strategies_keep_the_law(strategy, parents):
    logits = noise_logits(3, seed=4)
    logits[0] *= 0.5
    law = np.exp(logits[0].astype(np.float64))
    law /= law.sum()
    best = np.argsort(-law)
    draft = [int(best[0]), int(best[1])]
    counts = np.zeros(VOCAB)
    tester = verifier(verify_strategy=strategy)
    for seed in range(3000):
        sequence = decoding(
            (5,), (6,), draft=draft, parents=parents, params=replace(SAMPLED, seed=seed)
        )
        plan = step_of(sequence)
        (verdict,) = tester.verify(plan, output_of(plan, logits))
        counts[verdict.tokens[0]] += 1
    # Total variation of 3000 draws from this law to itself is 0.03 on average; a wrong rule
    # (accepting both drafts always, or testing the second against the whole law) is off by 0.1.
    assert 0.5 * np.abs(counts / 3000 - law).sum() < 0.06


def test_topp_accepts_what_is_merely_possible():
    logits = np.zeros((2, VOCAB), np.float32)
    logits[0, [3, 4]] = [8.0, 7.5]
    accepted = [
        verify(
            decoding((5,), (6,), draft=(token,), params=replace(SAMPLED, top_p=0.9)),
            logits,
            verify_strategy="topp",
        ).kept
        for token in (3, 4, 5)
    ]
    assert accepted == [(0,), (0,), ()]


# -- debugging policies ---------------------------------------------------------------------------


def test_reject_all_and_accept_all():
    sequence = decoding((5,), (6,), draft=(1, 2, 3))
    right = peaked([1, 2, 3, 4], VOCAB)
    verdict = verify(sequence, right, accept_policy="reject_all")
    assert (verdict.tokens, verdict.num_drafted) == ((1,), 3)
    wrong = peaked([9, 9, 9, 4], VOCAB)
    verdict = verify(sequence, wrong, accept_policy="accept_all")
    assert (verdict.tokens, verdict.kept) == ((1, 2, 3, 4), (0, 1, 2))
    tree = decoding((5,), (6,), draft=(1, 2, 3), parents=[-1, -1, 1])
    verdict = verify(tree, wrong, accept_policy="accept_all")
    assert (verdict.tokens, verdict.kept) == ((2, 3, 4), (1, 2))
    plain = verify(decoding((5,), (6,)), right[:1], accept_policy="accept_all")
    assert plain.tokens == (1,)


# -- logprobs -------------------------------------------------------------------------------------


def log_softmax(row):
    shifted = row.astype(np.float64) - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def test_logprobs_are_raw_and_of_the_row_that_chose_the_token():
    logits = noise_logits(4, seed=2)
    params = replace(GREEDY, logprobs=3, logit_bias=((9, 100.0),))
    verdict = verify(decoding((5,), (6,), draft=(9, 9, 2), params=params), logits)
    assert verdict.tokens == (9, 9, 9)
    assert verdict.logprobs is not None and len(verdict.logprobs) == 3
    for row, entry in enumerate(verdict.logprobs):
        law = log_softmax(logits[row])
        order = np.argsort(-law)
        assert entry.token_id == 9 and entry.logprob == pytest.approx(law[9], abs=1e-5)
        assert entry.rank == 1 + order.tolist().index(9)
        assert [token for token, _ in entry.top] == order[:3].tolist()
        assert [value for _, value in entry.top] == pytest.approx(law[order[:3]], abs=1e-5)


def test_logprobs_follow_the_accepted_tree_path():
    logits = noise_logits(4, seed=5)
    logits[0, 2] = logits[2, 8] = 9.0
    sequence = decoding(
        (5,), (6,), draft=(1, 2, 3), parents=[-1, -1, 1], params=replace(GREEDY, logprobs=0)
    )
    verdict = verify(sequence, logits)
    assert verdict.tokens == (2, 8) and verdict.logprobs is not None
    assert verdict.logprobs[1].logprob == pytest.approx(log_softmax(logits[2])[8], abs=1e-5)
    assert verdict.logprobs[1].top == ()


def test_prompt_logprobs_of_whole_prompts_and_chunks():
    logits = noise_logits(5, seed=6)
    params = replace(GREEDY, prompt_logprobs=1)
    whole = decoding((1, 2, 3, 4, 5), (), params=params)
    verdict = verify(whole, logits)
    assert [entry.token_id for entry in verdict.prompt_logprobs] == [2, 3, 4, 5]
    assert len(verdict.tokens) == 1
    chunk = whole._replace(start=1, history=whole.history[:3], samples=False, next_token=4)
    part = verify(chunk, logits[1:3])
    assert part.tokens == () and part.prompt_logprobs == verdict.prompt_logprobs[1:3]
    last = whole._replace(start=3)
    assert verify(last, logits[3:]).prompt_logprobs == verdict.prompt_logprobs[3:]


def test_rows_of_prompt_logprobs_do_not_disturb_the_others():
    params = replace(GREEDY, prompt_logprobs=0)
    first = decoding((1, 2, 3), (), params=params, key=("a", 0))
    middle = decoding((1, 2, 3), (), params=params, key=("b", 0))._replace(
        history=np.array([1, 2], np.int32), samples=False, next_token=3
    )
    last = decoding((5,), (6,), draft=(7,), key=("c", 0))
    plan = step_of(first, middle, last)
    logits = peaked([8, 8, 9, 8, 8, 7, 4], VOCAB)
    verdicts = verifier().verify(plan, output_of(plan, logits))
    assert [v.tokens for v in verdicts] == [(9,), (), (7, 4)]
    assert [len(v.prompt_logprobs) for v in verdicts] == [2, 2, 0]


def test_a_chunk_without_logit_rows_has_no_verdict():
    chunk = decoding((1, 2, 3), ())._replace(samples=False, next_token=4)
    plan = step_of(chunk, decoding((5,), (6,), key=("other", 0)))
    verdicts = verifier().verify(plan, output_of(plan, peaked([2], VOCAB)))
    assert [v.sequence_id for v in verdicts] == [("other", 0)]


def test_always_right_and_always_wrong_drafts():
    """Acceptance is exactly 1 and exactly 0."""
    targets = [1, 2, 3, 4, 5]
    right = verify(decoding((5,), (6,), draft=targets[:4]), peaked(targets, VOCAB))
    assert (len(right.kept), right.num_drafted, len(right.tokens)) == (4, 4, 5)
    wrong = verify(decoding((5,), (6,), draft=(9, 9, 9, 9)), peaked(targets, VOCAB))
    assert (wrong.kept, wrong.num_drafted, wrong.tokens) == ((), 4, (1,))
    assert wrong.sequence_id == KEY
