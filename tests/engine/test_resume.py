# SPDX-License-Identifier: Apache-2.0
"""A request that goes on from tokens emitted elsewhere gives what an undisturbed run gives."""

from dataclasses import replace

import pytest

from fdspec.core import FinishReason, SamplingParams, Submit
from fdspec.spec_decode.naive import NaiveProposer
from fdspec.spec_decode.ngram import NgramProposer
from tests.engine.test_exactness_on_fakes import ROOMY, SETTINGS, SUBMITS
from tests.fakes.build import make_fake_engine
from tests.fakes.exactness import reference, run


def make_engine(proposer, setting):
    return make_fake_engine(proposer, setting, habit=10.0)


@pytest.fixture(scope="module")
def undisturbed():
    return reference(make_engine, SUBMITS, ROOMY)


def resumed(submit, undisturbed, cut):
    """The request after `cut` tokens of every choice, or at its end."""
    outputs = [undisturbed[submit.request_id, choice].tokens for choice in range(submit.params.n)]
    emitted = (None if len(tokens) <= cut else tuple(tokens[:cut]) for tokens in outputs)
    return replace(submit, emitted=tuple(emitted))


@pytest.mark.parametrize("cut", [1, 5, 22])
@pytest.mark.parametrize("method", ["naive", "ngram"])
def test_the_rest_is_that_of_an_undisturbed_run(undisturbed, method, cut):
    submits = [resumed(submit, undisturbed, cut) for submit in SUBMITS]
    num_tokens = 0
    for setting in SETTINGS[cut % 4 :: 4]:
        proposer = NaiveProposer() if method == "naive" else NgramProposer(4, min_ngram_size=1)
        results = run(make_engine(proposer, setting), submits, arrivals_per_step=3)
        for submit in submits:
            for choice, emitted in enumerate(submit.emitted):
                whole = undisturbed[submit.request_id, choice]
                rest = results[submit.request_id, choice]
                if emitted is None:
                    assert rest.num_events == 0, "a choice that had ended came back"
                    continue
                assert rest.tokens == whole.tokens
                assert rest.logprobs == whole.logprobs[cut:]
                assert (rest.finish, rest.stop_reason) == (whole.finish, whole.stop_reason)
                num_tokens += len(rest.tokens) - cut
    assert num_tokens > 0


@pytest.mark.parametrize(
    ("emitted", "words"),
    [
        (((5,), ()), "outputs of 2 choices are given, but n is 1"),
        (((5, 4000),), "output token id 4000 is outside the vocabulary"),
        (((5, 6, 7),), "3 output tokens are there, so max_tokens 3 is reached"),
    ],
)
def test_a_wrong_start_is_refused(emitted, words):
    submit = Submit("a", (3, 4), SamplingParams(max_tokens=3, seed=1), emitted=emitted)
    result = run(make_engine(NaiveProposer(), ROOMY), [replace(submit, emitted=())])["a", 0]
    assert result.finish is not FinishReason.ERROR
    engine = make_engine(NaiveProposer(), ROOMY)
    engine.topic.send(submit)
    (event,) = engine.step()
    assert event.finish is FinishReason.ERROR and words in event.error
