# SPDX-License-Identifier: Apache-2.0
"""Reads a ModelConfig from config.json or from a GGUF file's metadata.

Owns the foreign key names; never reads weights and never imports paddle, so that the frontend can
call `read_model_config` in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdspec.core.errors import CheckpointError
from fdspec.models.config import ModelConfig, RopeScaling
from fdspec.models.config_keys import ConfigKeys
from fdspec.models.files import find_checkpoint
from fdspec.models.registry import family_of_architecture, family_of_gguf
from fdspec.utils.gguf_header import GGUFHeader, read_gguf_header
from fdspec.utils.json_file import read_json_object, read_optional_json_object

_DEFAULT_ROPE_THETA = 10000.0
_DEFAULT_RMS_NORM_EPS = 1e-6
_DEFAULT_MAX_POSITIONS = 2048
_ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3")


def read_model_config(path: str | Path) -> ModelConfig:
    """Architecture of a local model.

    Args:
        path: model folder, or .gguf, .safetensors or .pdparams file.

    Raises:
        CheckpointError: nothing there, an architecture that is not known, or numbers that are
            missing or do not fit together.
    """
    folder = Path(path)
    if any(folder.glob("*.gguf")) or not (folder / "config.json").exists():
        files = find_checkpoint(folder)
        if files.gguf is not None:
            return config_of_gguf(read_gguf_header(files.gguf))
        folder = files.folder
    generation = read_optional_json_object(folder / "generation_config.json")
    return config_of_json(folder / "config.json", generation)


def config_of_json(file: Path, generation: Mapping[str, Any]) -> ModelConfig:
    """Read config.json; `generation` is generation_config.json, whose EOS ids take precedence."""
    keys = ConfigKeys(file, read_json_object(file))
    architectures = keys.raw("architectures") or []
    if not architectures:
        raise CheckpointError(f"{file}: 'architectures' is missing or empty")
    family = family_of_architecture(str(architectures[0]), str(file))
    _refuse_what_is_not_built(keys)
    heads = keys.integer("num_attention_heads")
    hidden = keys.integer("hidden_size")
    head_dim = keys.optional_integer("head_dim")
    if head_dim is None:
        if heads <= 0 or hidden % heads:
            raise CheckpointError(
                f"{file}: hidden_size ({hidden}) must be a multiple of "
                f"num_attention_heads ({heads}) when head_dim is not given"
            )
        head_dim = hidden // heads
    max_positions = keys.integer("max_position_embeddings", _DEFAULT_MAX_POSITIONS)
    rope = {**(keys.raw("rope_scaling") or {}), **(keys.raw("rope_parameters") or {})}
    theta = rope.get("rope_theta", keys.raw("rope_theta"))
    attention_bias = bool(keys.raw("attention_bias"))
    use_bias = family.has_use_bias and bool(keys.raw("use_bias"))
    tied = keys.raw("tie_word_embeddings")
    eos = generation.get("eos_token_id", keys.raw("eos_token_id"))
    return ModelConfig(
        architecture=str(architectures[0]),
        source=str(file),
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=keys.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=keys.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        rms_norm_eps=keys.number("rms_norm_eps", _DEFAULT_RMS_NORM_EPS),
        rope_theta=family.default_rope_theta
        if theta is None
        else keys.as_number("rope_theta", theta),
        rope_scaling=_rope_scaling(file, rope, max_positions),
        tie_word_embeddings=family.ties_by_default if tied is None else bool(tied),
        qkv_bias=family.always_qkv_bias or attention_bias or use_bias,
        output_bias=family.has_output_bias and attention_bias or use_bias,
        mlp_bias=bool(keys.raw("mlp_bias")) or use_bias,
        qk_norm=family.qk_norm,
        experts=None if family.read_experts is None else family.read_experts(keys),
        bos_id=_first_id(keys.raw("bos_token_id")),
        eos_ids=_ids(eos),
        dtype=str(keys.raw("dtype") or keys.raw("torch_dtype") or "float32"),
    )


def config_of_gguf(header: GGUFHeader) -> ModelConfig:
    """Read the metadata of a GGUF file."""
    architecture = str(header.require("general.architecture"))
    family = family_of_gguf(architecture, str(header.path))
    prefix = f"{architecture}."
    metadata = {
        key.removeprefix(prefix): value
        for key, value in header.metadata.items()
        if key.startswith(prefix)
    }
    keys = ConfigKeys(header.path, metadata, prefix)
    heads = keys.integer("attention.head_count")
    hidden = keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", hidden // heads if heads > 0 else 0)
    rotated = keys.integer("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise CheckpointError(
            f"{header.path}: {prefix}rope.dimension_count ({rotated}) differs from the head's size "
            f"({head_dim}); rotating a part of the head is not supported"
        )
    max_positions = keys.integer("context_length")
    tokens = header.metadata.get("tokenizer.ggml.tokens", [])
    names = family.gguf_names
    return ModelConfig(
        architecture=family.architectures[0],
        source=str(header.path),
        vocab_size=keys.integer("vocab_size", len(tokens)),
        hidden_size=hidden,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=keys.integer("block_count"),
        num_heads=heads,
        num_kv_heads=keys.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        rms_norm_eps=_decimal(keys.number("attention.layer_norm_rms_epsilon")),
        rope_theta=keys.number("rope.freq_base", _DEFAULT_ROPE_THETA),
        rope_scaling=_gguf_rope_scaling(keys, max_positions),
        tie_word_embeddings=f"{names.output}.weight" not in header.tensors,
        qkv_bias=f"{names.query.format(layer=0)}.bias" in header.tensors,
        output_bias=f"{names.attention_output.format(layer=0)}.bias" in header.tensors,
        mlp_bias=f"{names.gate.format(layer=0)}.bias" in header.tensors,
        qk_norm=family.qk_norm,
        bos_id=_first_id(header.metadata.get("tokenizer.ggml.bos_token_id")),
        eos_ids=_gguf_eos_ids(header),
        dtype="gguf",
    )


def _refuse_what_is_not_built(keys: ConfigKeys) -> None:
    file = keys.file
    activation = keys.raw("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise CheckpointError(f"{file}: hidden_act {activation!r} is not supported; only silu is")
    window = keys.raw("sliding_window")
    positions = keys.integer("max_position_embeddings", _DEFAULT_MAX_POSITIONS)
    if window is not None and keys.raw("use_sliding_window") is not False and window < positions:
        raise CheckpointError(
            f"{file}: sliding-window attention ({window} of {positions} positions) is not supported"
        )
    rotated = keys.raw("partial_rotary_factor")
    if rotated is not None and rotated != 1:
        raise CheckpointError(
            f"{file}: partial_rotary_factor {rotated} is not supported; only 1 is"
        )
    if keys.raw("quantization_config"):
        method = keys.raw("quantization_config").get("quant_method", "unknown")
        raise CheckpointError(
            f"{file}: the weights are already quantised ({method}), which is not supported; use "
            "the 16-bit checkpoint with `quantization: wint4`, or a GGUF file"
        )


def _rope_scaling(file: Path, rope: Mapping[str, Any], max_positions: int) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _ROPE_KINDS:
        raise CheckpointError(
            f"{file}: rope type {kind!r} is not supported; supported: {', '.join(_ROPE_KINDS)}"
        )
    if kind == "default":
        return None
    keys = ConfigKeys(file, rope, "rope_scaling.")
    original = keys.integer("original_max_position_embeddings", max_positions)
    attention_factor = rope.get("attention_factor")
    default_factor = max_positions / original if kind == "yarn" and original else None
    return RopeScaling(
        kind=kind,
        factor=keys.number("factor", default_factor),
        original_max_positions=original,
        low_frequency_factor=keys.number("low_freq_factor", 1.0),
        high_frequency_factor=keys.number("high_freq_factor", 4.0),
        beta_fast=keys.number("beta_fast", 32.0),
        beta_slow=keys.number("beta_slow", 1.0),
        attention_factor=None
        if attention_factor is None
        else keys.as_number("attention_factor", attention_factor),
        mscale=keys.number("mscale", 0.0),
        mscale_all_dim=keys.number("mscale_all_dim", 0.0),
        truncate=bool(rope.get("truncate", True)),
    )


def _gguf_rope_scaling(keys: ConfigKeys, max_positions: int) -> RopeScaling | None:
    kind = keys.raw("rope.scaling.type") or "none"
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        keys.fail("rope.scaling.type", kind, "none, linear or yarn")
    return RopeScaling(
        kind=kind,
        factor=keys.number("rope.scaling.factor"),
        original_max_positions=keys.integer("rope.scaling.original_context_length", max_positions),
    )


def _decimal(value: float) -> float:
    """A float32 of the metadata as the decimal number it was written as (1e-05)."""
    return float(f"{value:.6g}")


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(token) for token in (value if isinstance(value, list) else [value]))


def _first_id(value: Any) -> int | None:
    return next(iter(_ids(value)), None)


def _gguf_eos_ids(header: GGUFHeader) -> tuple[int, ...]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = [header.metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    return tuple(dict.fromkeys(int(token) for token in found if token is not None))
