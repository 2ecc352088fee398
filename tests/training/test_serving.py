# SPDX-License-Identifier: Apache-2.0
"""A server reads the folder, and accepts what the trainer's evaluation says it would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from fdspec import LLM, SamplingParams
from fdspec.models import read_model_config
from fdspec.training.draft_folder import write_draft_folder
from fdspec.training.evaluation import evaluate
from fdspec.training.head import MTPHead
from fdspec.utils.bfloat16 import from_bfloat16, to_bfloat16

NUM_DRAFTS = 3


def test_served_drafts_are_those_of_the_evaluation(tiny_path, target, held_out, tmp_path):
    head = MTPHead(target, seed=0)
    weights = {n: from_bfloat16(to_bfloat16(w.numpy())) for n, w in head.weights().items()}
    head.load_weights(weights)
    write_draft_folder(tmp_path, target.config, weights, num_model_steps=NUM_DRAFTS)
    expected = evaluate(head, target, held_out, NUM_DRAFTS)

    drafted, accepted = np.zeros(NUM_DRAFTS, int), np.zeros(NUM_DRAFTS, int)
    speculation = {
        "method": "mtp",
        "model": str(tmp_path),
        "num_speculative_tokens": NUM_DRAFTS,
        "adaptive_draft_length": False,
    }
    options: dict[str, Any] = {"quantization": "none", "num_gpu_blocks_override": 32}
    with LLM(tiny_path, speculative_config=speculation, **options) as llm:
        for recording in held_out:
            prompt, answer = np.split(recording.tokens, [recording.answer_start])
            params = SamplingParams(temperature=0.0, max_tokens=len(answer))
            output = llm.generate([prompt.tolist()], params, use_tqdm=False)[0].outputs[0]
            assert list(output.token_ids) == answer.tolist()
            for position, (count, right) in enumerate(output.draft.per_position):
                drafted[position] += count
                accepted[position] += right
    # The server drafts as many tokens whatever comes of them.
    survived = np.array([drafted[0], *accepted[:-1]])
    np.testing.assert_allclose(accepted, expected.accepted, atol=2)
    np.testing.assert_allclose(survived, expected.drafted, atol=2)
    assert accepted[0] > 10


def test_the_bundled_head_fits_the_demo_model(smollm2_path):
    folder = Path(__file__).parents[2] / "configs" / "heads" / "smollm2-135m-mtp"
    model = read_model_config(smollm2_path)
    facts = json.loads((folder / "config.json").read_text())
    assert facts["hidden_size"] == model.hidden_size
    assert facts["num_attention_heads"] == model.num_heads
    assert facts["rope_theta"] == model.rope_theta
    file = folder / "model.safetensors"
    assert file.stat().st_size < 10e6
    projection = load_file(file)["model.mtp_linear_proj.0.weight"].float()
    assert projection.shape == (model.hidden_size, 2 * model.hidden_size)
    assert projection.isfinite().all() and projection.abs().sum() > 0
