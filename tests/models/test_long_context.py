# SPDX-License-Identifier: Apache-2.0
"""Stretched rotary frequencies, set by the deployment: logits of transformers, at any length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fdspec.config import RopeScalingConfig
from fdspec.core.plan import SequencePlan, StepPlan
from fdspec.core.sampling_params import SamplingParams
from fdspec.models import ModelOptions, RopeOverride, load_model
from fdspec.worker.model_runner import ModelRunner
from tests.models import oracle

ORIGINAL = 32
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {},
    "dynamic": {},
    "yarn": {"beta_fast": 8.0},
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


def make_long_runner(path, kind, factor, max_model_len) -> ModelRunner:
    scaling = RopeScalingConfig(
        type=kind, factor=factor, original_max_position_embeddings=ORIGINAL, **SCALINGS[kind]
    )
    options = ModelOptions(
        quantization="none", max_model_len=max_model_len, rope=RopeOverride(None, scaling)
    )
    return ModelRunner(
        load_model(path, options),
        num_blocks=-(-max_model_len // 64),
        kv_cache_dtype="float32",
    )


def last_logits(runner, tokens, chunk):
    """Logits of the last row of a prompt that is computed in chunks."""
    for start in range(0, len(tokens), chunk):
        end = min(start + chunk, len(tokens))
        sequence = SequencePlan(
            sequence_id=("a", 0),
            start=start,
            history=np.asarray(tokens[:end], np.int32),
            num_prompt=len(tokens),
            draft=None,
            block_ids=tuple(range(-(-end // 64))),
            params=SamplingParams(logprobs=1),
            samples=end == len(tokens),
            next_token=None if end == len(tokens) else int(tokens[end]),
        )
        output = runner.execute(StepPlan(0, (sequence,)))
    return np.array(output.logits[-1])


def random_tokens(count):
    return np.random.default_rng(3).integers(0, oracle.TINY["vocab_size"], count).tolist()


@pytest.mark.parametrize("kind", SCALINGS)
def test_logits_equal_transformers(tmp_path, kind):
    length = 4 * ORIGINAL
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **SCALINGS[kind]}
    original = {"original_max_position_embeddings": ORIGINAL}
    model = oracle.make_tiny(
        "llama",
        tmp_path / "scaled",
        # transformers starts dynamic scaling there; the others read the original length.
        max_position_embeddings=ORIGINAL if kind == "dynamic" else length,
        rope_parameters=rope if kind in ("linear", "dynamic") else {**rope, **original},
    )
    oracle.make_tiny("llama", tmp_path / "plain", max_position_embeddings=ORIGINAL)
    runner = make_long_runner(tmp_path / "plain", kind, 4.0, length)
    # Of just that length: transformers takes the length so far for dynamic scaling.
    tokens = random_tokens(length)
    expected = oracle.logits_of(model, tokens)[-1]
    for chunk in (length, 48, 5):
        logits = last_logits(runner, tokens, chunk)
        assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
    runner.close()


@pytest.mark.parametrize("length", [1500, pytest.param(32_000, marks=pytest.mark.full)])
def test_chunks_of_a_long_prompt_do_not_change_a_bit(tmp_path, length):
    oracle.make_tiny("llama", tmp_path, max_position_embeddings=ORIGINAL)
    runner = make_long_runner(tmp_path, "dynamic", 1024.0, 32_768)
    tokens = random_tokens(length)
    first, second = (last_logits(runner, tokens, chunk) for chunk in (512, 1999))
    np.testing.assert_array_equal(first, second)
    runner.close()
