# SPDX-License-Identifier: Apache-2.0
"""No drafter, batch, chunking or preemption changes a token; on a model without weights."""

import itertools
from dataclasses import replace

import pytest

from fdspec.core import FinishReason
from fdspec.scheduler.prompt_rows import PrefillLimits
from fdspec.spec_decode.adaptive import AdaptiveProposer
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.ngram import NgramProposer
from tests.fakes.build import EOS_ID, VOCAB_SIZE, make_fake_engine, make_submits
from tests.fakes.drafters import all_drafters
from tests.fakes.exactness import Setting, compare, reference, run, sampling_cases

ROOMY = Setting(max_num_seqs=8, max_num_batched_tokens=4096, num_blocks=400)
# 23 blocks of 4 tokens hold little more than the longest request (74 tokens).
SETTINGS = [Setting(*values) for values in itertools.product((1, 7, 16), (16, 64, 4096), (23, 400))]
SUBMITS = make_submits(
    sampling_cases(
        max_tokens=24,
        stop_ids=(7, 15, 30, 22, 41),
        stop=("ab", "g", "zz"),
        ids=(2, 9, 11, 13, 20, 31),
    ),
    seed=1,
)
DRAFTERS = sorted(all_drafters({}, VOCAB_SIZE, eos_id=EOS_ID, stop_id=7, length=1))


@pytest.fixture(scope="module", params=[0.0, 10.0], ids=["chaotic", "looping"])
def world(request):
    """A kind of text: how to make engines, plain decoding's answers, and what would follow them."""

    def make_engine(proposer, setting, **options):
        return make_fake_engine(proposer, setting, habit=request.param, **options)

    expected = reference(make_engine, SUBMITS, ROOMY)
    endless = reference(make_engine, SUBMITS, ROOMY, endless=True)
    return make_engine, expected, {key: result.tokens for key, result in endless.items()}


def check(world, drafter, settings, **options):
    """Compare under each setting.

    Returns tokens compared, preemptions, drafts accepted, and prompt tokens found in the cache.
    """
    make_engine, expected, _ = world
    totals = [0, 0, 0, 0]
    for setting in settings:
        engine = make_engine(drafter, setting, **options)
        results = run(engine, SUBMITS, arrivals_per_step=3)
        totals[0] += compare(expected, results)
        stats = engine.monitor.stats()
        totals[1] += stats.num_preempted_total
        totals[3] += stats.num_prefix_hits_total
        totals[2] += sum(result.num_accepted for result in results.values())
    return totals


def test_the_requests_end_in_every_way(world):
    _, expected, _ = world
    ends = [(r.finish, type(r.stop_reason)) for r in expected.values()]
    assert set(ends) == {
        (FinishReason.LENGTH, type(None)),
        (FinishReason.STOP, type(None)),
        (FinishReason.STOP, int),
        (FinishReason.STOP, str),
    }


def test_plain_decoding_under_every_setting(world):
    _, num_preempted, num_accepted, num_found = check(world, NaiveProposer(), SETTINGS)
    assert num_preempted > 0 and num_accepted == 0 and num_found > 20 * len(SETTINGS)


def test_forced_swaps(world):
    for num_slots, prefix_caching in itertools.product((4, 100), (False, True)):
        for base in (Setting(7, 16, 23), Setting(16, 64, 23)):
            setting = replace(base, num_swap_slots=num_slots, prefix_caching=prefix_caching)
            engine = world[0](NgramProposer(3, min_ngram_size=1), setting)
            compare(world[1], run(engine, SUBMITS, arrivals_per_step=3))
            stats = engine.monitor.stats()
            assert 0 < stats.num_swapped_total <= stats.num_preempted_total


def test_without_prefix_caching(world):
    settings = [replace(setting, prefix_caching=False) for setting in SETTINGS[::3]]
    assert check(world, NaiveProposer(), settings)[3] == 0


@pytest.mark.parametrize("max_step_ms", [None, 0.05])
def test_prompts_under_way_together_and_time_limits(world, max_step_ms):
    """How long steps really take decides about the chunks here, and about no token."""
    limits = PrefillLimits(max_partial=3, max_long=1, long_threshold=20, max_step_ms=max_step_ms)
    for drafter in (NaiveProposer(), NgramProposer(3)):
        check(world, drafter, SETTINGS[::4], prefill=limits)


@pytest.mark.parametrize("name", DRAFTERS)
def test_adversaries(world, name):
    """A sample of draft lengths x settings; the full suite runs all of them."""
    index = DRAFTERS.index(name)
    for offset, length in enumerate((1, 3, 8)):
        drafter = make_drafter(world, name, length)
        check(world, drafter, SETTINGS[(index + 5 * offset) % 9 :: 9])


@pytest.mark.full
@pytest.mark.parametrize("length", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_adversaries_under_every_setting(world, name, length):
    check(world, make_drafter(world, name, length), SETTINGS)


def make_drafter(world, name, length):
    return all_drafters(world[2], VOCAB_SIZE, eos_id=EOS_ID, stop_id=7, length=length)[name]


@pytest.mark.parametrize("length", range(1, 9))
def test_ngram(world, length):
    proposer = NgramProposer(length, min_ngram_size=1)
    check(world, proposer, SETTINGS[length % 9 :: 9])
    check(world, AdaptiveProposer(proposer), SETTINGS[(length + 3) % 9 :: 9])


def test_ngram_finds_drafts_in_looping_text():
    def make_engine(proposer, setting):
        return make_fake_engine(proposer, setting, habit=1000.0)

    expected = reference(make_engine, SUBMITS, ROOMY)
    results = run(make_engine(NgramProposer(5, min_ngram_size=1), ROOMY), SUBMITS)
    assert compare(expected, results) > 0
    assert results["greedy-no-eos", 0].num_accepted >= 5


@pytest.mark.parametrize("strategy", ["target_match", "greedy"])
def test_reject_all_is_plain_decoding(world, strategy):
    setting = Setting(7, 64, 400)
    make_engine = world[0]
    plain = run(make_engine(NaiveProposer(), setting, verify_strategy=strategy), SUBMITS)
    engine = make_engine(
        make_drafter(world, "right", 4),
        setting,
        verify_strategy=strategy,
        accept_policy="reject_all",
    )
    results = run(engine, SUBMITS)
    compare(plain, results)
    assert sum(result.num_accepted for result in results.values()) == 0
    assert sum(result.num_drafted for result in results.values()) > 100


def test_greedy_strategy_with_drafts_equals_greedy_without(world):
    make_engine = world[0]
    expected = run(make_engine(NaiveProposer(), ROOMY, verify_strategy="greedy"), SUBMITS)
    drafter = NgramProposer(4, min_ngram_size=1)
    results = run(make_engine(drafter, ROOMY, verify_strategy="greedy"), SUBMITS)
    compare(expected, results)


@pytest.mark.parametrize("strategy", ["rejection", "topp"])
def test_other_strategies_finish_every_request(world, strategy):
    """Their tokens may differ; lengths, stops and books may not go wrong."""
    make_engine = world[0]
    engine = make_engine(
        make_drafter(world, "tree", 5), Setting(7, 16, 23), verify_strategy=strategy
    )
    for (name, _), result in run(engine, SUBMITS).items():
        assert result.finish in (FinishReason.STOP, FinishReason.LENGTH)
        assert len(result.tokens) == result.num_events + result.num_accepted
        assert name != "one-token" or len(result.tokens) == 1


def test_right_drafts_are_all_accepted_and_wrong_ones_never(world):
    """K + 1 tokens in every step, or one."""
    setting = replace(ROOMY, max_num_seqs=16)
    for name, rate in (("right", 1), ("wrong", 0)):
        engine = world[0](make_drafter(world, name, 4), setting)
        results = run(engine, SUBMITS)
        drafted = sum(result.num_drafted for result in results.values())
        assert drafted > 50
        assert sum(result.num_accepted for result in results.values()) == rate * drafted
    longest = results["greedy-no-eos", 0]
    assert longest.num_events == 24
