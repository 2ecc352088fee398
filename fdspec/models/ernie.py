# SPDX-License-Identifier: Apache-2.0
"""ERNIE-4.5 dense: Llama whose rotation turns neighbouring dimensions of a head.

Rows of query and key are put in the order for rotating halves when they are loaded. Scores are sums
over the same products, so nothing else changes.
"""

from fdspec.models.family import Family

ERNIE4_5 = Family(
    name="ernie4_5",
    architectures=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    gguf_architecture="ernie4_5",
    has_use_bias=True,
    interleaved_rope=True,
    gguf_interleaved_rope=True,
    default_rope_theta=500000.0,
    ties_by_default=True,
)
