# SPDX-License-Identifier: Apache-2.0
"""Hidden states in the cache: the same from both forms of a step, rounded, and moved with trees."""

from __future__ import annotations

import numpy as np
import pytest

from fdspec.core import Draft, SamplingParams, SequencePlan, StepPlan, Verdict
from fdspec.kv.cache import ExtraLayers
from fdspec.models import ModelOptions, load_model
from fdspec.utils.bfloat16 import from_bfloat16
from fdspec.worker.model_runner import ModelRunner
from tests.models import oracle

BLOCK_SIZE = 16
KEY = ("a", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    oracle.make_tiny("llama", path)
    return path


def tapped_runner(folder, *, use_step_program: bool) -> ModelRunner:
    model = load_model(folder, ModelOptions(quantization="none", max_model_len=64))
    states = ExtraLayers(2, 1, 1, model.config.hidden_size, "bfloat16", taps=(1, 3))
    return ModelRunner(
        model,
        num_blocks=4,
        block_size=BLOCK_SIZE,
        kv_cache_dtype="float32",
        use_step_program=use_step_program,
        extra=[states],
    )


def plan(tokens: list[int], start: int, draft: Draft | None = None) -> StepPlan:
    history = np.array(tokens, np.int32)
    params = SamplingParams(temperature=0.0)
    blocks = (2, 0, 3)
    sequence = SequencePlan(KEY, start, history, 1, draft, blocks, params, samples=True)
    return StepPlan(0, (sequence,))


def states_of(runner: ModelRunner) -> list[np.ndarray]:
    """[slots of the sequence, hidden] of each tap."""
    return [
        layer[0][[2, 0, 3]].reshape(3 * BLOCK_SIZE, -1).copy() for layer in runner.cache.extra[0]
    ]


def test_both_forms_keep_the_same_states(folder):
    tokens = list(range(5, 30))
    found = []
    for use_step_program in (True, False):
        runner = tapped_runner(folder, use_step_program=use_step_program)
        runner.execute(plan(tokens[:20], 0))
        runner.execute(plan(tokens, 20))
        found.append(states_of(runner))
        runner.close()
    for mine, theirs in zip(*found, strict=True):
        assert mine[:25].any(axis=1).all() and not mine[25:].any()
        np.testing.assert_array_equal(mine, theirs)


def test_states_are_those_of_the_definition(folder):
    import torch

    tokens = list(range(5, 30))
    model = oracle.LlamaForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        hidden = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    runner = tapped_runner(folder, use_step_program=True)
    runner.execute(plan(tokens, 0))
    first, last = (from_bfloat16(states[:25]) for states in states_of(runner))
    np.testing.assert_allclose(first, hidden[1][0].numpy(), rtol=1e-2, atol=1e-2)
    # The library applies the final norm to the last one.
    normed = runner.model.norm.forward(last)
    np.testing.assert_allclose(normed, hidden[3][0].numpy(), rtol=3e-2, atol=3e-2)
    runner.close()


def test_states_of_an_accepted_path_move_with_it(folder):
    tokens, path = list(range(5, 25)), [40, 41]
    draft = Draft(
        KEY, np.array([30, 40, 50, 41], np.int32), np.array([-1, -1, 0, 1], np.int32), "test"
    )
    runner = tapped_runner(folder, use_step_program=True)
    step = plan(tokens, 0, draft)
    runner.execute(step)
    runner.commit(step, [Verdict(KEY, (40, 41, 9), (1, 3), 4)])
    moved = [states[:22] for states in states_of(runner)]
    runner.close()
    plain = tapped_runner(folder, use_step_program=True)
    plain.execute(plan(tokens + path, 0))
    for mine, theirs in zip(moved, states_of(plain), strict=True):
        np.testing.assert_array_equal(mine, theirs[:22])
    plain.close()
