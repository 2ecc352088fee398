# SPDX-License-Identifier: Apache-2.0
"""No method changes a token, alone or where each row of a batch uses another one; on a fake model.

Requests come twice, so that what was remembered of the first time is drafted the second time.
"""

import itertools
from dataclasses import replace

import pytest

from fdspec.config import SpeculativeConfig
from fdspec.spec_decode.registry import build_proposer
from tests.fakes.build import VOCAB_SIZE, make_fake_engine, make_submits
from tests.fakes.exactness import Setting, compare, reference, run, sampling_cases

ROOMY = Setting(max_num_seqs=8, max_num_batched_tokens=4096, num_blocks=400)
SETTINGS = [Setting(*values) for values in itertools.product((1, 7, 16), (16, 64, 4096), (23, 400))]
CASES = sampling_cases(
    max_tokens=24,
    stop_ids=(7, 15, 30, 22, 41),
    stop=("ab", "g", "zz"),
    ids=(2, 9, 11, 13, 20, 31),
)
ONCE = make_submits(CASES)
SUBMITS = ONCE + [replace(s, request_id=f"again-{s.request_id}") for s in ONCE]

HYBRID = SpeculativeConfig(
    method="hybrid",
    proposers=tuple(
        SpeculativeConfig(method=name) for name in ("suffix", "memory", "ngram", "lookahead")
    ),
)
CONFIGS = {
    "ngram": SpeculativeConfig(method="ngram", num_speculative_tokens=4, min_ngram_size=1),
    "suffix": SpeculativeConfig(method="suffix", suffix_decoding_max_spec_factor=4.0),
    "suffix-small": SpeculativeConfig(
        method="suffix",
        num_speculative_tokens=3,
        suffix_decoding_max_tree_depth=4,
        suffix_decoding_max_cached_requests=2,
        suffix_decoding_min_token_prob=0.0,
    ),
    "memory": SpeculativeConfig(method="memory"),
    "memory-small": SpeculativeConfig(method="memory", num_speculative_tokens=7),
    "prediction": SpeculativeConfig(method="prediction", num_speculative_tokens=6),
    "lookahead": SpeculativeConfig(method="lookahead"),
    "lookahead-small": SpeculativeConfig(
        method="lookahead", level=3, window=2, guess_set_size=1, num_speculative_tokens=5
    ),
    "lookahead-deep": SpeculativeConfig(method="lookahead", level=7, window=1, guess_set_size=3),
    "hybrid": HYBRID,
}


@pytest.fixture(scope="module", params=[0.0, 10.0], ids=["chaotic", "looping"])
def world(request):
    """How to make engines, and plain decoding's answers."""

    def make_engine(proposer, setting, **options):
        return make_fake_engine(proposer, setting, habit=request.param, **options)

    return make_engine, reference(make_engine, SUBMITS, ROOMY)


def with_predictions(submits, expected):
    """Every request predicts its output, some with a few tokens changed, moved or missing."""
    changed = []
    for index, submit in enumerate(submits):
        tokens = list(expected[submit.request_id, 0].tokens)
        if index % 3 == 1:
            tokens[3:5] = [2]
        elif index % 3 == 2:
            tokens = [5, 6, *tokens[:6], 9, *tokens[6:]]
        params = replace(submit.params, prediction=tuple(tokens))
        changed.append(replace(submit, params=params))
    return changed


@pytest.mark.parametrize("adaptive", [False, True], ids=["full", "adaptive"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_method(world, name, adaptive):
    _, expected = world
    index = list(CONFIGS).index(name)
    config = replace(CONFIGS[name], adaptive_draft_length=adaptive)
    submits = with_predictions(SUBMITS, expected) if name == "prediction" else SUBMITS
    check(world, config, submits, [SETTINGS[(5 * index + 9 * adaptive) % 18]])


@pytest.mark.full
@pytest.mark.parametrize("adaptive", [False, True], ids=["full", "adaptive"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_method_under_every_setting(world, name, adaptive):
    config = replace(CONFIGS[name], adaptive_draft_length=adaptive)
    submits = with_predictions(SUBMITS, world[1]) if name == "prediction" else SUBMITS
    check(world, config, submits, SETTINGS)


def check(world, config, submits, settings):
    """Compare under each setting; something must have been drafted."""
    make_engine, expected = world
    for setting in settings:
        drafting = build_proposer(config, vocab_size=VOCAB_SIZE)
        results = run(make_engine(drafting.proposer, setting), submits, arrivals_per_step=3)
        compare(expected, results)
        assert sum(result.num_drafted for result in results.values()) > 0


def test_rows_with_different_methods(world):
    make_engine, expected = world
    submits = with_predictions(SUBMITS, expected)
    methods = (None, "ngram", "suffix", "memory", "lookahead", "hybrid")
    mixed = [
        replace(
            submit,
            cache_salt=f"tenant {index % 2}",
            params=replace(
                submit.params,
                draft_method=methods[index % 6],
                prediction=submit.params.prediction if index % 4 == 0 else (),
            ),
        )
        for index, submit in enumerate(submits)
    ]
    for setting in (SETTINGS[8], SETTINGS[13]):
        drafting = build_proposer(HYBRID, vocab_size=VOCAB_SIZE)
        results = run(make_engine(drafting.proposer, setting), mixed, arrivals_per_step=5)
        compare(expected, results)
        sources = {
            source
            for result in results.values()
            for draft in result.drafts
            for source in [draft.source, *(name for name, _, _ in draft.by_source)]
        }
        assert {"suffix", "memory", "lookahead", "prediction"} <= sources


def test_a_request_gets_the_method_it_asks_for(world):
    make_engine, expected = world
    for method in ("suffix", "memory", "lookahead"):
        submits = [
            replace(submit, params=replace(submit.params, draft_method=method))
            for submit in SUBMITS
        ]
        drafting = build_proposer(HYBRID, vocab_size=VOCAB_SIZE)
        results = run(make_engine(drafting.proposer, ROOMY), submits)
        compare(expected, results)
        sources = {draft.source for result in results.values() for draft in result.drafts}
        assert sources <= {method}


def test_counts_by_source_add_up(world):
    make_engine, expected = world
    config = replace(HYBRID, adaptive_draft_length=False)
    drafting = build_proposer(config, vocab_size=VOCAB_SIZE)
    results = run(make_engine(drafting.proposer, ROOMY), with_predictions(SUBMITS, expected))
    compare(expected, results)
    drafts = [draft for result in results.values() for draft in result.drafts]
    mixed = [draft for draft in drafts if draft.by_source]
    assert mixed
    for draft in mixed:
        assert draft.source == "hybrid"
        assert sum(drafted for _, drafted, _ in draft.by_source) == draft.num_drafted
        assert sum(kept for _, _, kept in draft.by_source) == draft.num_accepted
    for draft in drafts:
        assert draft.num_accepted <= (draft.num_positions or draft.num_drafted) <= draft.num_drafted


@pytest.mark.parametrize("strategy", ["rejection", "topp"])
def test_trees_under_other_strategies(world, strategy):
    """Their tokens may differ; lengths, stops and books may not go wrong."""
    drafting = build_proposer(CONFIGS["memory"], vocab_size=VOCAB_SIZE)
    engine = world[0](drafting.proposer, Setting(7, 16, 23), verify_strategy=strategy)
    for result in run(engine, SUBMITS).values():
        assert len(result.tokens) == result.num_events + result.num_accepted
