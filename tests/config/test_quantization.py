# SPDX-License-Identifier: Apache-2.0
"""quantization as a map of kinds of layers, in fdspec's and in FastDeploy's words."""

from __future__ import annotations

import pytest

from fdspec.config import config_from_options, load_config
from fdspec.core.errors import ConfigError

MIXED = [
    {"dense": "wint8", "experts": "wint4"},
    {"quantization": "mix_quant", "dense_quant_type": "wint8", "moe_quant_type": "wint4"},
    {"quantization": "wint8", "moe_quant_type": "wint4"},
]


@pytest.mark.parametrize("value", MIXED)
def test_a_map_names_two_formats(value):
    model = config_from_options({"model": "m", "quantization": value}).config.model
    assert (model.quantization, model.expert_quantization) == ("wint8", "wint4")


def test_from_a_file_and_from_the_command_line(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("model: m\nquantization:\n  dense: wint8\n  experts: wint4\n")
    model = load_config(["--config", str(file)]).config.model
    assert (model.quantization, model.expert_quantization) == ("wint8", "wint4")
    text = '{"dense_quant_type": "bfloat16", "moe_quant_type": "wint4_g64"}'
    model = load_config(["--model", "m", "--quantization", text]).config.model
    assert (model.quantization, model.expert_quantization) == ("bfloat16", "wint4_g64")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"moe": "wint4"}, "quantization.moe: unknown key.*dense_quant_type"),
        (
            {"dense": "wint8", "dense_quant_type": "wint8"},
            "format of one kind of layers is named twice",
        ),
        ({"a.dense": "wint8"}, "quantization.a.dense: unknown key"),
        ({"experts": "wint3"}, "expert_quantization must be one of .* got 'wint3'"),
        ('{"dense": }', "not valid JSON"),
    ],
)
def test_mistakes_are_named(value, message):
    with pytest.raises(ConfigError, match=message):
        config_from_options({"model": "m", "quantization": value})


def test_a_map_and_a_key_must_not_say_the_same_twice():
    options = {"model": "m", "quantization": {"experts": "wint4"}, "expert_quantization": "wint8"}
    with pytest.raises(ConfigError, match="quantization: the format of one kind .* named twice"):
        config_from_options(options)
    del options["expert_quantization"]
    assert config_from_options(options).config.model.expert_quantization == "wint4"
