# SPDX-License-Identifier: Apache-2.0
"""Faults that speculative servers have had, as requests with the right answers.

Each stands for a kind. The fake model repeats itself, so that n-gram drafts come in accepted runs.
"""

from collections import Counter
from dataclasses import replace

import pytest

from fdspec.core import FinishReason, SamplingParams, SequenceId, Submit
from fdspec.spec_decode.adaptive import AdaptiveProposer
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.ngram import NgramProposer
from fdspec.spec_decode.token_counts import TokenCounts
from tests.fakes.build import EOS_ID, TOKEN_BYTES, VOCAB_SIZE, make_fake_engine
from tests.fakes.drafters import all_drafters
from tests.fakes.exactness import Result, Setting, compare, run

ROOMY = Setting(max_num_seqs=8, max_num_batched_tokens=256, num_blocks=200)
# 12 blocks of 4 tokens for requests of 32 tokens: room for one and a half.
TIGHT = replace(ROOMY, num_blocks=12)
PROMPT = (9, 4, 21, 9, 4, 21, 9)
GREEDY = SamplingParams(max_tokens=40, temperature=0.0, seed=0, ignore_eos=True)


def answer(proposer, *params, setting=ROOMY, habit=1000.0, prompt=PROMPT):
    """One choice of each request."""
    engine = make_fake_engine(proposer, setting, habit=habit)
    submits = [Submit(str(index), prompt, values) for index, values in enumerate(params)]
    return [result for _, result in sorted(run(engine, submits).items())]


def plain(*params, **options):
    return answer(NaiveProposer(), *params, **options)


def ngram(*params, **options):
    return answer(NgramProposer(4, min_ngram_size=1), *params, **options)


def accepted_run(result: Result) -> tuple[int, int]:
    """Output indices, half open, of the first step that gave at least four tokens."""
    start = 0
    for count in result.steps:
        if count >= 4:
            return start, start + count
        start += count
    raise AssertionError("no accepted run")


@pytest.fixture(scope="module")
def looping():
    """The greedy answer, most of it from accepted drafts."""
    (result,) = ngram(GREEDY)
    assert result.num_accepted > 15
    return result


@pytest.mark.parametrize(
    "penalties",
    [
        {"frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"frequency_penalty": 2.0},
        {"repetition_penalty": 1.5},
        {"presence_penalty": -2.0, "frequency_penalty": -2.0},
    ],
)
@pytest.mark.parametrize("name", ["right", "wrong", "right-3-then-wrong"])
def test_penalties_count_every_emitted_token_once(penalties, name):
    """Counters missed all but one token of an accepted run, or counted rejected drafts."""
    params = replace(GREEDY, **penalties)
    for habit in (3.0, 1000.0):
        (expected,) = plain(params, habit=habit)
        drafters = all_drafters(
            {("0", 0): expected.tokens}, VOCAB_SIZE, eos_id=EOS_ID, stop_id=7, length=4
        )
        engine = make_fake_engine(drafters[name], ROOMY, habit=habit)
        rows = engine.verifier._rows  # type: ignore[attr-defined]
        forget = rows.forget
        seen: dict[SequenceId, TokenCounts] = {}

        def keep(ids, rows=rows, forget=forget, seen=seen):
            seen.update({key: rows._counts[key] for key in ids if key in rows._counts})
            forget(ids)

        rows.forget = keep
        results = run(engine, [Submit("0", PROMPT, params)])
        compare({("0", 0): expected}, results)
        # The last step's tokens are never counted, because nothing follows them.
        entries = seen["0", 0].with_path([])
        counted = dict(zip(entries.ids.tolist(), entries.output_counts.tolist(), strict=True))
        num_counted = sum(counted.values())
        assert +Counter(counted) == Counter(expected.tokens[:num_counted])
        assert num_counted >= len(expected.tokens) - 5


def test_min_tokens_is_neither_one_short_nor_one_long(looping):
    """EOS was accepted too early, or barred one token too long, on draft rows."""
    stop = looping.tokens[-1]
    first = looping.tokens.index(stop)
    for min_tokens in range(first - 1, first + 5):
        params = replace(GREEDY, stop_token_ids=(stop,), min_tokens=max(min_tokens, 0))
        (expected,), (result,) = plain(params), ngram(params)
        assert result.tokens == expected.tokens
        assert stop not in result.tokens[:min_tokens]


def test_unseeded_and_seeded_requests_have_noise_of_their_own():
    """Rows of a batch shared one random stream; or the seed was ignored by speculation."""
    warm = replace(GREEDY, temperature=1.0, max_tokens=24)
    different = ngram(*(replace(warm, seed=seed) for seed in range(8)), habit=2.0)
    assert len({tuple(result.tokens) for result in different}) == 8
    texts = set()
    for proposer in (NaiveProposer(), NgramProposer(5, min_ngram_size=1)):
        for count in (1, 8):
            for setting in (ROOMY, TIGHT):
                results = answer(proposer, *[replace(warm, seed=1)] * count, setting=setting)
                texts |= {tuple(result.tokens) for result in results}
    assert len(texts) == 1


def test_logprobs_are_of_the_row_that_gave_the_token():
    """Every logprob was 0, or that of another row of the run."""
    params = replace(GREEDY, logprobs=5)
    (expected,), (result,) = plain(params, habit=20.0), ngram(params, habit=20.0)
    assert result.num_accepted > 0
    compare({"x": expected}, {"x": result})  # type: ignore[dict-item]
    for token, entry in zip(result.tokens, result.logprobs, strict=True):
        assert entry.token_id == token and entry.logprob < 0.0
        values = [value for _, value in entry.top]
        assert len(values) == 5 and values == sorted(values, reverse=True)
        assert entry.rank > 5 or entry.top[entry.rank - 1][0] == token


@pytest.mark.parametrize("habit", [1.0, 1000.0])
def test_wrong_drafts_change_nothing_and_right_ones_are_all_taken(habit):
    """The first draft token was taken without verification."""
    (expected,) = plain(GREEDY, habit=habit)
    for name, rate in (("wrong", 0), ("right", 1)):
        drafters = all_drafters(
            {("0", 0): expected.tokens}, VOCAB_SIZE, eos_id=EOS_ID, stop_id=7, length=4
        )
        (result,) = answer(drafters[name], GREEDY, habit=habit)
        assert result.tokens == expected.tokens
        assert result.num_drafted > 0
        assert result.num_accepted == rate * result.num_drafted
    assert result.num_events == 1 + -(-(len(expected.tokens) - 1) // 5)


def text_of(tokens):
    return b"".join(TOKEN_BYTES[token] for token in tokens).decode()


def test_stop_strings_inside_accepted_runs(looping):
    """A stop string early in a run was missed, because only the end of the step was searched."""
    start, end = accepted_run(looping)
    pieces = looping.tokens[start:end]
    # Inside one token, over two tokens of the run, and over the border to the step before.
    stops = {
        text_of(pieces[1:2]),
        text_of(pieces[1:3]),
        text_of(looping.tokens[start - 1 : start + 1]),
    }
    for stop in stops - {""}:
        params = replace(GREEDY, stop=(stop,))
        (expected,), (result,) = plain(params), ngram(params)
        assert result.tokens == expected.tokens
        assert (result.finish, result.stop_reason) == (FinishReason.STOP, stop)
        assert stop in text_of(result.tokens) and stop not in text_of(result.tokens[:-1])


def test_eos_inside_an_accepted_run(looping):
    """Generation went on after an EOS inside a run, or ended at one that was rejected."""
    start, _ = accepted_run(looping)
    inside = looping.tokens[start + 1]
    params = replace(GREEDY, stop_token_ids=(inside,))
    (expected,), (result,) = plain(params), ngram(params)
    assert result.tokens == expected.tokens and result.stop_reason == inside
    (spammed,) = answer(
        all_drafters({}, VOCAB_SIZE, eos_id=inside, stop_id=7, length=4)["eos-spam"], GREEDY
    )
    assert spammed.tokens == looping.tokens and spammed.finish is FinishReason.LENGTH


def test_nothing_of_what_follows_a_stop_is_counted(looping):
    """Tokens, logprobs and acceptance counted what came after the stop."""
    start, _ = accepted_run(looping)
    params = replace(GREEDY, stop_token_ids=(looping.tokens[start + 1],), logprobs=1)
    (result,) = ngram(params)
    assert len(result.logprobs) == len(result.tokens)
    assert len(result.tokens) == result.num_events + result.num_accepted
    assert all(d.num_accepted <= d.num_drafted for d in result.drafts)


def test_two_replicas_draft_and_plan_the_same():
    """Ranks with different tie-breaks, clocks or caches proposed different drafts."""
    engines = [
        make_fake_engine(AdaptiveProposer(NgramProposer(5, min_ngram_size=1)), TIGHT, habit=5.0)
        for _ in range(2)
    ]
    plans: list[list[object]] = [[], []]
    for engine, log in zip(engines, plans, strict=True):
        execute = engine.runner.execute

        def noted(plan, execute=execute, log=log):
            log.append(
                [
                    (
                        s.sequence_id,
                        s.start,
                        s.block_ids,
                        None if s.draft is None else s.draft.tokens.tolist(),
                    )
                    for s in plan.sequences
                ]
            )
            return execute(plan)

        engine.runner.execute = noted  # type: ignore[method-assign]
        submits = [
            Submit(str(i), PROMPT, SamplingParams(max_tokens=25, seed=i, temperature=0.5))
            for i in range(8)
        ]
        run(engine, submits, arrivals_per_step=2)
    assert plans[0] == plans[1] and len(plans[0]) > 20
    assert any(draft for step in plans[0] for *_, draft in step)  # type: ignore[attr-defined]


def test_preempted_requests_lose_and_repeat_nothing():
    """Outputs that arrived late were applied to a request that had been preempted or resumed."""
    params = [
        SamplingParams(max_tokens=25, seed=i, logprobs=2, prompt_logprobs=1) for i in range(8)
    ]
    expected = plain(*params, habit=5.0)
    engine = make_fake_engine(NgramProposer(4, min_ngram_size=1), TIGHT, habit=5.0)
    submits = [Submit(str(index), PROMPT, values) for index, values in enumerate(params)]
    results = run(engine, submits)
    compare(dict(zip(sorted(results), expected, strict=True)), results)
    assert engine.monitor.stats().num_preempted_total >= 5
