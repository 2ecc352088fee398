# SPDX-License-Identifier: Apache-2.0
"""Models with experts: formats by kind of layer, files, and what is said about wrong ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fdspec.core.errors import CheckpointError, ConfigError
from fdspec.models import (
    ModelOptions,
    WeightCache,
    load_model,
    read_model_config,
    weight_formats,
)
from fdspec.models.experts import ExpertsConfig
from fdspec.ops import WeightFormat
from tests.models import oracle
from tests.models.stepping import execute, make_runner, share

PROMPT = list(range(3, 60))


def logits(path, quantization: str | None = "none") -> np.ndarray:
    return execute(make_runner(path, quantization), share(0, PROMPT, 0, len(PROMPT)))[0]


@pytest.mark.parametrize(
    ("quantization", "expert_quantization", "dense", "experts"),
    [
        ("wint4", None, "wint8", "wint4"),
        ("wint4_a16", None, "wint8_a16", "wint4_a16"),
        ("wint4_g64", None, "wint4_g64", "wint4_g64"),
        ("wint8", None, "wint8", "wint8"),
        (None, None, "bfloat16", "bfloat16"),
        ("bfloat16", "wint8", "bfloat16", "wint8"),
        (None, "wint4_channel", "bfloat16", "wint4_channel"),
    ],
)
def test_formats_by_kind_of_layer(tmp_path, quantization, expert_quantization, dense, experts):
    oracle.make_tiny("ernie_moe", tmp_path)
    model = load_model(tmp_path, ModelOptions(quantization, expert_quantization))
    plain, mixed = (model.layers[index].mlp for index in (0, 1))
    assert {weight.format for weight in mixed.packed_experts} == {WeightFormat.parse(experts)}
    for linear in (plain.down, mixed.shared.down, mixed.shared.gate_up):
        assert linear.packed_weight.format == WeightFormat.parse(dense)
    assert mixed.router.packed_weight.format == WeightFormat.parse("none")
    formats = weight_formats(model.config, quantization, expert_quantization)
    if quantization == "wint4":
        assert str(formats) == "wint8, experts wint4"


@pytest.mark.parametrize(("quantization", "agreement"), [("wint8", 0.99), ("wint4", 0.9)])
def test_quantised_experts_stay_close(tmp_path, quantization, agreement):
    model = oracle.make_tiny("ernie_moe", tmp_path)
    expected = oracle.logits_of(model, PROMPT)
    assert np.corrcoef(logits(tmp_path, quantization).ravel(), expected.ravel())[0, 1] > agreement


def test_experts_are_kept_in_the_weight_cache(tmp_path):
    oracle.make_tiny("ernie_moe", tmp_path / "model")
    options = ModelOptions("wint4", cache=WeightCache(tmp_path / "cache", 10**9))
    first, second = (load_model(tmp_path / "model", options) for _ in range(2))
    for mine, theirs in zip(first.buffers(), second.buffers(), strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    other = ModelOptions("wint4", "wint8", cache=options.cache)
    experts = load_model(tmp_path / "model", other).layers[1].mlp.packed_experts
    assert experts[0].format == WeightFormat.parse("wint8")


def test_dummy_weights(tmp_path):
    oracle.make_tiny("qwen3_moe", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    model = load_model(tmp_path, ModelOptions("wint4", dummy_weights=True))
    assert model.layers[0].mlp.packed_experts[1].out_features == 8 * 64


def edit(folder, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_further_predicting_layers_and_statistics_are_ignored(tmp_path):
    oracle.make_tiny("ernie_moe", tmp_path)
    before = logits(tmp_path)

    def add(tensors) -> None:
        tensors["model.mtp_linear_proj.0.weight"] = np.ones((64, 128), np.float32)
        tensors["model.layers.1.mlp.moe_statics.expert_usage"] = np.ones((1, 8), np.float32)

    edit(tmp_path, add)
    np.testing.assert_array_equal(logits(tmp_path), before)


def test_a_missing_expert_is_named(tmp_path):
    oracle.make_tiny("ernie_moe", tmp_path)
    edit(tmp_path, lambda tensors: tensors.pop("model.layers.2.mlp.experts.5.up_proj.weight"))
    with pytest.raises(
        CheckpointError, match=r"experts\.5\.up_proj\.weight' \[32, 64\] is missing"
    ):
        load_model(tmp_path)


def with_config(folder, variant: str, **changes: Any):
    oracle.make_tiny(variant, folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return read_model_config(folder)


def test_which_layers_have_experts(tmp_path):
    changes = {"num_hidden_layers": 8, "moe_layer_start_index": 2, "moe_layer_interval": 2}
    config = with_config(tmp_path, "ernie_moe", **changes, moe_layer_end_index=5)
    assert config.experts == ExpertsConfig(
        layers=(3, 5),
        num_experts=8,
        num_chosen=3,
        intermediate_size=32,
        num_shared=2,
        has_bias=True,
        smallest_sum=1e-12,
    )
    config = with_config(tmp_path, "qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2)
    assert config.experts is not None and config.experts.layers == (3, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moe_gate_act": "sigmoid"}, "moe_gate_act 'sigmoid' is not supported"),
        ({"moe_num_experts": [64, 64]}, "'moe_num_experts' must be an integer"),
        ({"moe_k": 9}, "9 experts for a token, but a layer has 8"),
        ({"moe_k": 0}, "num_chosen of the experts must be positive"),
        ({"moe_num_experts": 1024}, "at most 512 experts"),
        ({"moe_intermediate_size": 40}, "must be a multiple of 16, got 40"),
        ({"hidden_size": 72, "head_dim": 16}, "hidden_size must be a multiple of 16"),
        ({"moe_layer_interval": 0}, "'moe_layer_interval' must be at least 1"),
    ],
)
def test_configurations_that_are_not_served(tmp_path, changes, message):
    with pytest.raises(CheckpointError, match=message):
        with_config(tmp_path, "ernie_moe", **changes)


def test_a_format_for_experts_needs_experts(tmp_path):
    oracle.make_tiny("ernie", tmp_path)
    with pytest.raises(ConfigError, match="expert_quantization wint4: the model .* has no experts"):
        load_model(tmp_path, ModelOptions("wint8", "wint4"))
