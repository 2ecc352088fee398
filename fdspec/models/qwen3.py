# SPDX-License-Identifier: Apache-2.0
"""Qwen3 dense: Llama with RMSNorm over each head of query and key."""

from fdspec.models.family import Family

QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    gguf_architecture="qwen3",
    qk_norm=True,
    has_output_bias=True,
)
