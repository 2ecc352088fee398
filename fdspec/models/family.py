# SPDX-License-Identifier: Apache-2.0
"""Family: which options of the one decoder a group of models uses, and what its tensors are called.

Owns no numbers: those come from the checkpoint. Never imports paddle. Each family is a file beside
this one; registry.py lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fdspec.models.config_keys import ConfigKeys
from fdspec.models.experts import ExpertsConfig


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names of a checkpoint's tensors without `.weight` and `.bias`; `{layer}` is its number."""

    embedding: str
    final_norm: str
    output: str
    input_norm: str
    query: str
    key: str
    value: str
    attention_output: str
    query_norm: str
    key_norm: str
    post_attention_norm: str
    gate: str
    up: str
    down: str


# What Hugging Face checkpoints of Llama and its relatives use.
HUGGING_FACE_NAMES = TensorNames(
    embedding="model.embed_tokens",
    final_norm="model.norm",
    output="lm_head",
    input_norm="model.layers.{layer}.input_layernorm",
    query="model.layers.{layer}.self_attn.q_proj",
    key="model.layers.{layer}.self_attn.k_proj",
    value="model.layers.{layer}.self_attn.v_proj",
    attention_output="model.layers.{layer}.self_attn.o_proj",
    query_norm="model.layers.{layer}.self_attn.q_norm",
    key_norm="model.layers.{layer}.self_attn.k_norm",
    post_attention_norm="model.layers.{layer}.post_attention_layernorm",
    gate="model.layers.{layer}.mlp.gate_proj",
    up="model.layers.{layer}.mlp.up_proj",
    down="model.layers.{layer}.mlp.down_proj",
)

# What GGUF files of the same models use.
GGUF_NAMES = TensorNames(
    embedding="token_embd",
    final_norm="output_norm",
    output="output",
    input_norm="blk.{layer}.attn_norm",
    query="blk.{layer}.attn_q",
    key="blk.{layer}.attn_k",
    value="blk.{layer}.attn_v",
    attention_output="blk.{layer}.attn_output",
    query_norm="blk.{layer}.attn_q_norm",
    key_norm="blk.{layer}.attn_k_norm",
    post_attention_norm="blk.{layer}.ffn_norm",
    gate="blk.{layer}.ffn_gate",
    up="blk.{layer}.ffn_up",
    down="blk.{layer}.ffn_down",
)


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of a mixture of experts, like TensorNames; `{expert}` is its number.

    Attributes:
        router_bias: the whole name.
    """

    router: str = "model.layers.{layer}.mlp.gate"
    router_bias: str = "model.layers.{layer}.mlp.moe_statics.e_score_correction_bias"
    gate: str = "model.layers.{layer}.mlp.experts.{expert}.gate_proj"
    up: str = "model.layers.{layer}.mlp.experts.{expert}.up_proj"
    down: str = "model.layers.{layer}.mlp.experts.{expert}.down_proj"
    shared_gate: str = "model.layers.{layer}.mlp.shared_experts.gate_proj"
    shared_up: str = "model.layers.{layer}.mlp.shared_experts.up_proj"
    shared_down: str = "model.layers.{layer}.mlp.shared_experts.down_proj"


@dataclass(frozen=True, slots=True)
class Family:
    """One group of models.

    Attributes:
        name: for messages.
        architectures: class names in config.json; GGUF files are reported as the first.
        gguf_architecture: `general.architecture` of GGUF files; None if they are not read.
        qk_norm: RMSNorm over each head of query and key.
        always_qkv_bias: query, key and value have a bias whatever config.json says; else
            `attention_bias` decides.
        has_output_bias: the attention's output projection shares `attention_bias`.
        has_use_bias: `use_bias` of config.json gives every projection a bias.
        interleaved_rope: safetensors files hold query and key rows in the order for rotation of
            neighbouring pairs; they are put back to halves.
        gguf_interleaved_rope: the same of GGUF files.
        default_rope_theta: base of the rotary frequencies where config.json names none.
        ties_by_default: the output projection is the embedding unless config.json says otherwise.
        read_experts: reads the mixture of experts from config.json; None if there is none.
        names: tensors in safetensors files.
        gguf_names: tensors in GGUF files.
        expert_names: tensors of a mixture of experts in safetensors files.
        ignored: beginnings of the names of tensors that the model does without.
    """

    name: str
    architectures: tuple[str, ...]
    gguf_architecture: str | None
    qk_norm: bool = False
    always_qkv_bias: bool = False
    has_output_bias: bool = False
    has_use_bias: bool = False
    interleaved_rope: bool = False
    gguf_interleaved_rope: bool = False
    default_rope_theta: float = 10000.0
    ties_by_default: bool = False
    read_experts: Callable[[ConfigKeys], ExpertsConfig] | None = None
    names: TensorNames = HUGGING_FACE_NAMES
    gguf_names: TensorNames = GGUF_NAMES
    expert_names: ExpertNames = ExpertNames()
    ignored: tuple[str, ...] = ()
