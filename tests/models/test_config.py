# SPDX-License-Identifier: Apache-2.0
"""Architectures from config.json and GGUF metadata, and what is said about odd ones."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from fdspec.core.errors import CheckpointError, ConfigError
from fdspec.models import read_model_config
from fdspec.models.config import ModelConfig, RopeScaling

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def read(folder: Path, **changes) -> ModelConfig:
    values = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "model.safetensors").touch()
    return read_model_config(folder)


def test_smollm2(smollm2_path: Path):
    config = read_model_config(smollm2_path)
    assert config == ModelConfig(
        architecture="LlamaForCausalLM",
        source=str(smollm2_path),
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        tie_word_embeddings=True,
        bos_id=1,
        eos_ids=(2,),
        dtype="gguf",
    )


def test_defaults_of_absent_keys(tmp_path):
    config = read(tmp_path, num_key_value_heads=..., rope_theta=..., tie_word_embeddings=...)
    assert (config.num_kv_heads, config.head_dim) == (4, 16)
    assert config.rope_theta == 10000.0
    assert not config.tie_word_embeddings
    assert config.eos_ids == (2,)


def test_families_differ_in_options(tmp_path):
    qwen2 = read(
        tmp_path, architectures=["Qwen2ForCausalLM"], sliding_window=8, use_sliding_window=False
    )
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = read(tmp_path, architectures=["Qwen3ForCausalLM"], head_dim=32)
    assert (qwen3.qkv_bias, qwen3.output_bias, qwen3.qk_norm) == (False, False, True)
    assert qwen3.head_dim == 32
    llama = read(tmp_path, attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (True, True, True)


def test_generation_config_decides_about_eos(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert read(tmp_path).eos_ids == (7, 8)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_scaling_in_both_spellings(tmp_path, key):
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 500000.0,
    }
    config = read(tmp_path, rope_theta=..., **{key: llama3})
    assert config.rope_scaling == RopeScaling("llama3", 8.0, 64, 1.0, 4.0)
    assert config.rope_theta == 500000.0
    assert config.longest_context == 256
    yarn = read(tmp_path, rope_scaling={"type": "yarn", "factor": 4.0})
    assert yarn.longest_context == 1024


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausaLM"]}, r"nearest: LlamaForCausalLM.*Qwen3ForCausalLM"),
        ({"architectures": ...}, "'architectures' is missing"),
        ({"hidden_size": ...}, "'hidden_size' is missing"),
        ({"hidden_size": "64"}, "'hidden_size' must be an integer: '64'"),
        ({"hidden_size": 65}, r"hidden_size \(65\) must be a multiple"),
        ({"num_key_value_heads": 3}, r"num_heads \(4\) must be a multiple of num_kv_heads \(3\)"),
        ({"num_key_value_heads": 0}, "num_kv_heads must be positive"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_hidden_layers": -1}, "num_layers must be positive, got -1"),
        ({"head_dim": 12}, "head_dim must be a multiple of 8"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' must be a number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a positive number"),
        ({"rope_theta": float("inf")}, "rope_theta must be a positive number"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"sliding_window": 16}, "sliding-window attention"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope.*supported: default, linear"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'rope_scaling.factor' is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor must be >= 1"),
    ],
)
def test_odd_configurations_are_explained(tmp_path, changes, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        read(tmp_path, **changes)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_max_model_len(tmp_path):
    config = read(tmp_path)
    assert config.resolve_max_model_len(None) == 256
    assert config.resolve_max_model_len(100) == 100
    for wrong in (0, -5, 257):
        with pytest.raises(ConfigError, match=f"between 1 and 256.*got {wrong}"):
            config.resolve_max_model_len(wrong)
    stretched = replace(config, rope_scaling=RopeScaling("linear", 2.0, 256))
    assert stretched.resolve_max_model_len(512) == 512


def write_gguf(file: Path, architecture: str = "llama", **changes) -> Path:
    numbers = {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 48,
        "attention.head_count": 2,
        "vocab_size": 10,
        **changes,
    }
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in numbers.items():
        if value is not None:
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        (
            "lama",
            {},
            r"'lama' is not supported \(nearest: llama\); supported: ernie4_5, llama, qwen2, qwen3",
        ),
        ("llama", {"embedding_length": None}, "'llama.embedding_length' is missing"),
        ("llama", {"rope.dimension_count": 8}, "rotating a part of the head"),
        ("qwen2", {"attention.head_count_kv": 3}, "multiple of num_kv_heads"),
    ],
)
def test_odd_gguf_files_are_explained(tmp_path, architecture, changes, message):
    file = write_gguf(tmp_path / "m.gguf", architecture, **changes)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_model_config(file)
    assert str(file) in str(caught.value)


def test_reading_a_configuration_imports_no_paddle(smollm2_path: Path):
    code = (
        "import sys; from fdspec.models import read_model_config; "
        f"read_model_config({str(smollm2_path)!r}); sys.exit('paddle' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
