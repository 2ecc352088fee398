# SPDX-License-Identifier: Apache-2.0
"""Qwen3 with a mixture of experts: no shared experts, and no bias in the choice."""

from dataclasses import replace

from fdspec.models.config_keys import ConfigKeys
from fdspec.models.experts import ExpertsConfig
from fdspec.models.qwen3 import QWEN3


def read_experts(keys: ConfigKeys) -> ExpertsConfig:
    """The mixture of experts: every step-th layer, but for those that config.json excepts."""
    step = keys.integer("decoder_sparse_step", 1)
    if step < 1:
        keys.fail("decoder_sparse_step", step, "at least 1")
    plain = keys.raw("mlp_only_layers") or []
    num_layers = keys.integer("num_hidden_layers")
    num_experts = keys.optional_integer("num_experts")
    return ExpertsConfig(
        layers=tuple(
            layer for layer in range(num_layers) if layer not in plain and (layer + 1) % step == 0
        ),
        num_experts=keys.integer("num_local_experts") if num_experts is None else num_experts,
        num_chosen=keys.integer("num_experts_per_tok"),
        intermediate_size=keys.integer("moe_intermediate_size"),
        normalize=bool(keys.raw("norm_topk_prob")),
    )


QWEN3_MOE = replace(
    QWEN3,
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    gguf_architecture=None,
    read_experts=read_experts,
)
