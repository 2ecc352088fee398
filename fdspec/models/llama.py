# SPDX-License-Identifier: Apache-2.0
"""Llama 2 and 3, SmolLM 1 and 2, TinyLlama, Mistral without a sliding window."""

from fdspec.models.family import Family

LLAMA = Family(
    name="llama",
    architectures=("LlamaForCausalLM", "MistralForCausalLM"),
    gguf_architecture="llama",
    has_output_bias=True,
    gguf_interleaved_rope=True,
)
