# SPDX-License-Identifier: Apache-2.0
"""Rotary frequencies equal those of transformers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from fdspec.config import RopeScalingConfig, config_from_options
from fdspec.core.errors import ConfigError
from fdspec.models import RopeOverride, read_model_config
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


@pytest.mark.parametrize("length", [100, 32768, 40000, 65536, 131072])
@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_dynamic_scaling_is_that_of_the_longest_sequence(tmp_path, length, factor):
    config, oracle = both(tmp_path, "dynamic", {"factor": factor}, head_dim=64)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](oracle, "cpu", seq_len=length)
    frequencies, scale = rope_frequencies(config, length)
    np.testing.assert_allclose(frequencies, expected.numpy(), rtol=2e-6)
    assert scale == 1.0


def test_lengths_of_scaled_models(tmp_path):
    plain, _ = both(tmp_path, "default", {}, head_dim=64)
    assert plain.resolve_max_model_len(None) == 32768
    with pytest.raises(ConfigError, match="rope_scaling stretches it"):
        plain.resolve_max_model_len(32769)
    dynamic, _ = both(tmp_path, "dynamic", {"factor": 2.0}, head_dim=64)
    assert dynamic.resolve_max_model_len(None) == 32768, "a longer one changes short sequences"
    assert dynamic.resolve_max_model_len(65536) == 65536


@pytest.mark.parametrize("name", ROPES)
def test_settings_of_the_deployment_take_the_place_of_the_checkpoint(tmp_path, name):
    options = {"original_max_position_embeddings": 32768, **ROPES[name]}
    plain, _ = both(tmp_path, "default", {}, head_dim=64)
    stored, _ = both(tmp_path, name.split()[0], options, head_dim=64)
    scaling = config_from_options(
        {"model": "m", "rope_scaling": {"rope_type": name.split()[0], **options}}
    ).config.rope_scaling
    config = RopeOverride(None, scaling).apply(plain)
    assert config.rope_scaling == stored.rope_scaling
    assert scaling.factor is not None and stored.rope_scaling is not None
    original = stored.rope_scaling.original_max_positions
    assert config.longest_context == max(int(original * scaling.factor), 32768)
    back = RopeOverride(10.0, RopeScalingConfig(type="default")).apply(config)
    assert replace(back, max_position_embeddings=32768) == replace(plain, rope_theta=10.0)
    assert not RopeOverride().changes_something
    assert RopeOverride().apply(stored) == stored


def test_the_original_length_is_the_checkpoints(tmp_path):
    yarn = RopeOverride(None, RopeScalingConfig(type="yarn", factor=4.0))
    plain, _ = both(tmp_path, "default", {}, head_dim=64)
    assert yarn.apply(plain).longest_context == 4 * 32768
    stored, _ = both(tmp_path, "yarn", ROPES["yarn"], head_dim=64)
    assert stored.rope_scaling is not None
    assert yarn.apply(stored).rope_scaling == replace(stored.rope_scaling, factor=4.0)
