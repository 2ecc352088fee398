# SPDX-License-Identifier: Apache-2.0
"""What config.json of a draft head says, and the rotation that it shares with the target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdspec.core.errors import CheckpointError, ConfigError
from fdspec.models.config import ModelConfig
from fdspec.utils.json_file import read_json_object

if TYPE_CHECKING:
    from fdspec.layers.rotary import Rotary
    from fdspec.models.decoder import LlamaFamilyModel

_SIZES = {
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "rms_norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
}


def head_facts(folder: Path) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        ConfigError: there is none.
        CheckpointError: it cannot be read.
    """
    file = folder / "config.json"
    if not file.exists():
        raise ConfigError(
            f"speculative_config.model: {folder}: no draft head: config.json is missing"
        )
    return read_json_object(file)


def head_config(folder: Path, target: ModelConfig) -> ModelConfig:
    """The target's configuration with the sizes of the head's decoder layer.

    Raises:
        ConfigError: there is no config.json, or the head is for a model of another size.
        CheckpointError: a size is missing or no number.
    """
    file, facts = folder / "config.json", head_facts(folder)
    if facts.get("hidden_size") != target.hidden_size:
        raise ConfigError(
            f"speculative_config.model: {file}: the head is for a model of hidden_size "
            f"{facts.get('hidden_size')}, the served one has {target.hidden_size}"
        )
    stated = {"rope_theta": target.rope_theta, **facts}
    heads = facts.get("num_attention_heads")
    if stated.get("head_dim") is None and isinstance(heads, int) and heads > 0:
        stated["head_dim"] = target.hidden_size // heads
    stated.setdefault("num_key_value_heads", heads)
    for key in _SIZES:
        value = stated.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"{file}: {key!r} must be a number: {value!r}")
    return replace(
        target,
        source=str(file),
        **{name: stated[key] for key, name in _SIZES.items()},
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        experts=None,
    )


def head_rotary(config: ModelConfig, target: LlamaFamilyModel) -> Rotary:
    """The target's tables if they are the head's, too."""
    from fdspec.layers.rotary import Rotary
    from fdspec.models.rope import rope_frequencies

    theirs = target.config
    if (config.head_dim, config.rope_theta) == (theirs.head_dim, theirs.rope_theta):
        rotary: Rotary = target.layers[0].attention.rotary
        return rotary
    frequencies, scale = rope_frequencies(config, target.max_model_len)
    return Rotary(frequencies, scale, target.max_model_len)
