# SPDX-License-Identifier: Apache-2.0
"""The step program of a model against its layers called one by one: equal bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fdspec.core.draft import Draft
from fdspec.core.plan import SequencePlan, StepPlan
from fdspec.core.sampling_params import SamplingParams
from tests.models import oracle
from tests.models.stepping import blocks_of, execute, make_runner, share
from tests.ops.support import running, settings

# (family, weights, cache): tied and untied, with and without biases and head norms.
MODELS = [
    ("qwen3", None, "bfloat16"),
    ("qwen3", "wint4_g32_min", "bfloat16"),
    ("llama_tied_biased", "wint8", "bfloat16"),
    ("qwen2", "wint4_a16", "float32"),
    ("llama", "bfloat16", "bfloat16"),
    ("llama", "none", "float32"),
    ("ernie_untied_biased", None, "bfloat16"),
    ("ernie_moe", "wint4", "bfloat16"),
    ("ernie_moe", "none", "float32"),
    ("qwen3_moe", "wint8_a16", "bfloat16"),
    ("qwen3", "wint8", "int8"),
    ("llama", "none", "int8"),
]


@pytest.fixture(scope="module", params=MODELS, ids=lambda case: "-".join(map(str, case)))
def runners(request, tmp_path_factory):
    """(program, layers) over the same weights."""
    family, quantization, dtype = request.param
    folder = tmp_path_factory.mktemp("tiny")
    oracle.make_tiny(family, folder)
    pair = [make_runner(folder, quantization, dtype, use_step_program=use) for use in (True, False)]
    yield pair
    for runner in pair:
        runner.close()


def tokens_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 320, count).tolist()


def tree() -> Draft:
    parents = np.array([-1, -1, 0, 0, 1, 2, 2], dtype=np.int32)
    return Draft(("1", 0), np.arange(9, 16, dtype=np.int32), parents, "test")


def steps() -> list[list[SequencePlan]]:
    """A prompt in chunks, a batch of many rows, single rows, a draft chain and a tree."""
    first, second, third = tokens_of(1, 300), tokens_of(2, 60), tokens_of(3, 140)
    return [
        [share(0, first, 0, 5)],
        [share(0, first, 5, 230), share(1, second, 0, 40)],
        [share(0, first, 230, 231), share(1, second, 40, 41, draft=tree())],
        [share(0, first, 231, 237), share(1, second, 41, 42), share(2, third, 0, 90)],
        [share(2, third, 90, 140)],
    ]


@pytest.mark.parametrize(("isa", "num_threads"), settings())
def test_bits_are_those_of_the_layers(runners, isa, num_threads):
    program, layers = runners
    for step in steps():
        with running(isa, num_threads):
            results = execute(program, *step)
        for result, expected in zip(results, execute(layers, *step), strict=True):
            np.testing.assert_array_equal(result, expected)
    for mine, theirs in zip(program.cache.layers, layers.cache.layers, strict=True):
        np.testing.assert_array_equal(mine.key, theirs.key)
        np.testing.assert_array_equal(mine.value, theirs.value)


def test_sequences_may_share_the_blocks_of_a_prefix(runners):
    prefix, program = tokens_of(6, 192), runners[0]
    execute(program, share(0, prefix, 0, 192))
    followers = []
    for index in (1, 2, 3):
        tokens = prefix + tokens_of(10 + index, 3)
        own = blocks_of(index, 16)
        blocks = (*blocks_of(0, 192), *own)
        followers.append(share(index, tokens, 192, 195)._replace(block_ids=blocks))
    together = execute(program, *followers)
    for plan, result in zip(followers, together, strict=True):
        np.testing.assert_array_equal(result, execute(program, plan)[0])


def test_rows_without_logits_are_computed_all_the_same(runners):
    program, layers = runners
    tokens = tokens_of(4, 50)
    for runner in runners:
        middle = share(3, tokens, 0, 49)
        assert execute(runner, _without_logits(middle))[0].shape == (0, 320)
    last = share(3, tokens, 49, 50)
    np.testing.assert_array_equal(execute(program, last)[0], execute(layers, last)[0])


def _without_logits(plan: SequencePlan) -> SequencePlan:
    return plan._replace(params=type(plan.params)(), samples=False, next_token=7)


def test_greedy_steps_give_best_tokens_instead_of_logits(runners):
    program, layers = runners
    tokens = tokens_of(5, 41)
    plans = [
        share(3, tokens, 0, 40)._replace(params=SamplingParams(temperature=0)),
        share(2, tokens, 0, 20)._replace(params=SamplingParams(temperature=0)),
    ]
    outputs = [runner.execute(StepPlan(0, tuple(plans))) for runner in (program, layers)]
    assert outputs[0].best_tokens is not None and len(outputs[0].logits) == 0
    assert outputs[1].best_tokens is None
    np.testing.assert_array_equal(outputs[0].best_tokens, outputs[1].logits.argmax(axis=1))
    greedy = SamplingParams(temperature=0)
    for params in (
        replace(greedy, temperature=0.5),
        replace(greedy, logprobs=0),
        replace(greedy, prompt_logprobs=0),
        replace(greedy, min_tokens=3),
        replace(greedy, logit_bias=((7, 1.0),)),
        replace(greedy, bad_words_token_ids=((7,),)),
        replace(greedy, repetition_penalty=1.1),
    ):
        output = program.execute(StepPlan(0, (plans[0], plans[1]._replace(params=params))))
        assert output.best_tokens is None and len(output.logits) >= 2, params
