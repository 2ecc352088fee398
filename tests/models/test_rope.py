# SPDX-License-Identifier: Apache-2.0
"""Rotary frequencies equal those of transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from fdspec.core.errors import ConfigError
from fdspec.models import read_model_config
from fdspec.models.rope import rope_frequencies
from tests.models.oracle import TINY

ROPES = {
    "linear": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn with all options": {
        "factor": 16.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.2,
        "truncate": False,
    },
    "yarn with a factor": {
        "factor": 2.0,
        "original_max_position_embeddings": 32768,
        "attention_factor": 1.25,
    },
}


def both(tmp_path, kind: str, options: dict, **changes):
    parameters = {"rope_type": kind, "rope_theta": 500000.0, **options}
    settings = {**TINY, "hidden_size": 256, "max_position_embeddings": 32768, **changes}
    oracle = LlamaConfig(**settings, rope_parameters=parameters)
    values = {**json.loads(oracle.to_json_string()), "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    return read_model_config(tmp_path), oracle


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_frequencies_equal_transformers(tmp_path, name, head_dim):
    kind = name.split()[0]
    config, oracle = both(tmp_path, kind, ROPES[name], head_dim=head_dim)
    expected, factor = ROPE_INIT_FUNCTIONS[kind](oracle, "cpu")
    frequencies, scale = rope_frequencies(config, 1024)
    np.testing.assert_allclose(frequencies, expected.numpy(), rtol=2e-6)
    assert scale == pytest.approx(factor, rel=1e-12)


def test_without_scaling(tmp_path):
    config, _ = both(tmp_path, "default", {}, head_dim=8)
    frequencies, scale = rope_frequencies(config, 1024)
    np.testing.assert_allclose(frequencies, 500000.0 ** -np.array([0, 0.25, 0.5, 0.75]))
    assert scale == 1.0


def test_dynamic_scaling_ends_at_the_original_length(tmp_path):
    config, _ = both(tmp_path, "dynamic", {"factor": 2.0}, head_dim=8)
    plain, _ = both(tmp_path, "default", {}, head_dim=8)
    frequencies, _ = rope_frequencies(config, 32768)
    np.testing.assert_array_equal(frequencies, rope_frequencies(plain, 32768)[0])
    with pytest.raises(ConfigError, match="set max_model_len to that or less"):
        rope_frequencies(config, 32769)
