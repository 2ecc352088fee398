# SPDX-License-Identifier: Apache-2.0
"""rope_scaling in YAML, JSON and Python, under the names of config.json."""

import pytest

from fdspec.config import RopeScalingConfig, load_config
from fdspec.core.errors import ConfigError


def load(*arguments):
    return load_config(["--model", "m", *arguments]).config


def test_from_the_command_line():
    config = load("--rope-scaling", '{"type": "yarn", "factor": 4}', "--rope-theta", "5e5")
    assert config.rope_scaling == RopeScalingConfig(type="yarn", factor=4.0)
    assert config.model.rope_theta == 5e5
    assert load().rope_scaling == RopeScalingConfig()
    config = load("--rope-scaling", '{"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}')
    assert (config.rope_scaling.type, config.model.rope_theta) == ("dynamic", 1e4)
    assert (
        load("--rope-scaling.type", "linear", "--rope-scaling.factor", "2").rope_scaling.factor == 2
    )


def test_from_a_file(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text(
        "model: m\nrope_scaling:\n  type: llama3\n  factor: 8.0\n"
        "  original_max_position_embeddings: 8192\n"
    )
    scaling = load_config(["--config", str(path)]).config.rope_scaling
    assert scaling.original_max_position_embeddings == 8192
    assert scaling.high_freq_factor == 4.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('{"type": "ntk", "factor": 2}', "must be one of default, linear, dynamic, yarn, llama3"),
        ('{"type": "yarn"}', "type: yarn needs a factor"),
        ('{"factor": 2}', "factor needs a type: one of linear"),
        ('{"type": "linear", "factor": 0.5}', "must be a number of at least 1"),
        ('{"type": "linear", "factors": 2}', "did you mean factor?"),
        (
            '{"type": "llama3", "factor": 8, "low_freq_factor": 5}',
            "high_freq_factor (4) must exceed low_freq_factor (5)",
        ),
        ("off", 'must be a map, got \'off\'; example: --rope-scaling \'{"type": "yarn"'),
    ],
)
def test_mistakes(value, message):
    with pytest.raises(ConfigError) as caught:
        load("--rope-scaling", value)
    assert message in str(caught.value)
