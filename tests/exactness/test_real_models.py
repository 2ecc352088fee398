# SPDX-License-Identifier: Apache-2.0
"""No drafter, batch, chunking or preemption changes a token of a real model.

Models: random ones of each architecture with float32 caches, and the demo model with bfloat16 and
with int8 ones.

Requests: greedy and seeded sampling with every processor and every way to stop. Each test compares
at least MIN_TOKENS tokens, with no tolerance, logprobs included. The quick suite runs a sample, the
full suite some hundred more comparisons. `test_matrix.py` crosses methods with circumstances.
"""

import itertools

import pytest

from fdspec.core.protocols import Proposer
from fdspec.spec_decode.adaptive import AdaptiveProposer
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.ngram import NgramProposer
from fdspec.spec_decode.registry import build_proposer
from tests.exactness.matrix import MEMBERS, config_of, requests
from tests.exactness.worlds import ALL_WORLDS, REAL, WORLDS
from tests.fakes.drafters import all_drafters
from tests.fakes.exactness import Setting, compare, run

# 9 blocks of 16 tokens hold little more than the longest request (130 tokens).
SETTINGS = [Setting(*values) for values in itertools.product((1, 7, 16), (16, 64, 256), (9, 200))]
MIN_TOKENS = 250
# Fakes meet all of them in the quick suite.
QUICK_DRAFTERS = ("right-1-then-wrong", "tree", "wrong")
DRAFTERS = sorted(all_drafters({}, 100, eos_id=2, stop_id=7, length=1))


def check(world, drafter, settings):
    """Compare under each setting; returns preemptions, and prompt tokens found in the cache."""
    num_preempted = num_found = 0
    for setting in settings:
        engine = world.make_engine(drafter, setting)
        results = run(engine, world.submits, arrivals_per_step=3)
        assert compare(world.expected, results) >= MIN_TOKENS
        stats = engine.monitor.stats()
        num_preempted += stats.num_preempted_total
        num_found += stats.num_prefix_hits_total
    return num_preempted, num_found


def adversary(world, name, length):
    drafters = all_drafters(
        world.endless, world.vocab_size, eos_id=world.eos_id, stop_id=7, length=length
    )
    return drafters[name]


def test_forced_swaps(worlds):
    """Tight pools with swap space, a block cached or swapped or both."""
    for index, name in enumerate(WORLDS):
        tight = Setting(7, 64, 9, prefix_caching=index % 2 == 0, num_swap_slots=5 + 40 * index)
        proposer = NgramProposer(4, min_ngram_size=1)
        engine = worlds(name).make_engine(proposer, tight)
        results = run(engine, worlds(name).submits, arrivals_per_step=3)
        assert compare(worlds(name).expected, results) >= MIN_TOKENS
        assert engine.monitor.stats().num_swapped_total > 0


def test_batches_chunks_and_preemption(worlds):
    all_found = 0
    for name in WORLDS:
        tight = Setting(max_num_seqs=7, max_num_batched_tokens=64, num_blocks=9)
        num_preempted, num_found = check(worlds(name), NaiveProposer(), [tight])
        assert num_preempted > 0
        all_found += num_found
    assert all_found > 0


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(index, id=name, marks=[] if name in QUICK_DRAFTERS else pytest.mark.full)
        for index, name in enumerate(DRAFTERS)
    ],
)
def test_adversaries(worlds, index):
    """One setting and model for each; the full suite runs all of them."""
    world = worlds(WORLDS[index % len(WORLDS)])
    length = 1 + (3 * index) % 8
    check(world, adversary(world, DRAFTERS[index], length), [SETTINGS[(5 * index) % 18]])


@pytest.mark.parametrize(
    "length", [5, *(pytest.param(length, marks=pytest.mark.full) for length in (2, 8))]
)
def test_ngram(worlds, length):
    for index, name in enumerate(WORLDS):
        proposer: Proposer = NgramProposer(length, min_ngram_size=1)
        if length == 5:
            proposer = AdaptiveProposer(proposer)
        check(worlds(name), proposer, [SETTINGS[(7 * index + length) % 18]])


def test_int8_cache(worlds):
    """Chains with preemption and chunks, then trees; greedy and sampled, as everywhere."""
    world = worlds("smollm2-int8")
    num_preempted, _ = check(world, NgramProposer(5, min_ngram_size=1), [Setting(7, 64, 9)])
    assert num_preempted > 0
    check(world, adversary(world, "tree", 4), [Setting(16, 16, 200)])


def test_experts(worlds):
    """Which rows meet in an expert depends on drafts, chunks and neighbours; tokens do not."""
    world = worlds("ernie_moe")
    num_preempted, _ = check(world, NgramProposer(5, min_ngram_size=1), [Setting(7, 64, 9)])
    assert num_preempted > 0
    check(world, adversary(world, "tree", 4), [Setting(16, 16, 200)])


def check_mixed(world, settings):
    """Every request twice, each with another method, some with a prediction of their output."""
    submits, expected = requests(world, "mixed")
    for setting in settings:
        drafting = build_proposer(config_of("mixed", "adaptive"), vocab_size=world.vocab_size)
        engine = world.make_engine(drafting.proposer, setting)
        results = run(engine, submits, arrivals_per_step=3)
        assert compare(expected, results) >= 2 * MIN_TOKENS
        sources = {draft.source for result in results.values() for draft in result.drafts}
        assert len(sources) > 1 and sum(r.num_accepted for r in results.values()) > 0


@pytest.mark.parametrize("index", range(len(WORLDS)), ids=WORLDS)
def test_rows_with_different_methods(worlds, index):
    check_mixed(worlds(WORLDS[index]), [SETTINGS[(9 + 5 * index) % 18]])


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", REAL)
def test_rows_with_different_methods_under_every_setting(worlds, name):
    check_mixed(worlds(name), SETTINGS)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", MEMBERS)
@pytest.mark.parametrize("name", REAL)
def test_methods_under_many_settings(worlds, name, method):
    for length in ("adaptive", "full"):
        for setting in SETTINGS[length == "full" :: 2]:
            drafting = build_proposer(config_of(method, length), vocab_size=worlds(name).vocab_size)
            check(worlds(name), drafting.proposer, [setting])


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ALL_WORLDS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_adversaries_under_many_settings(worlds, name, drafter):
    world = worlds(name)
    for offset, length in enumerate((1, 3, 4, 8)):
        start = (DRAFTERS.index(drafter) + offset) % 6
        check(world, adversary(world, drafter, length), SETTINGS[start::6])


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ALL_WORLDS)
@pytest.mark.parametrize("length", range(1, 9))
def test_ngram_under_many_settings(worlds, name, length):
    proposer = NgramProposer(length, min_ngram_size=1)
    check(worlds(name), proposer, SETTINGS[length % 2 :: 2])
    check(worlds(name), AdaptiveProposer(proposer), SETTINGS[length % 6 :: 6])
