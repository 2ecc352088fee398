# SPDX-License-Identifier: Apache-2.0
"""Qwen2 and Qwen2.5 dense: Llama with a bias on query, key and value."""

from fdspec.models.family import Family

QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    gguf_architecture="qwen2",
    always_qkv_bias=True,
)
