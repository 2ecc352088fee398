# SPDX-License-Identifier: Apache-2.0
"""Spellings of values in FastDeploy, vLLM and MindIE, and what each means here.

The only place that knows them, as `foreign.py` is for keys. `translation.py` applies the tables.
"""

from __future__ import annotations

from fdspec.config.foreign import SPECULATIVE

METHOD_ALIASES = {
    "ngram_match": "ngram",
    "prompt_lookup": "ngram",
    "[ngram]": "ngram",
    "memory_decoding": "memory",
    "la": "lookahead",
    "lookahead_decoding": "lookahead",
    "suffix_decoding": "suffix",
    **dict.fromkeys(("deepseek_mtp", "ernie_mtp", "mimo_mtp", "glm4_moe_mtp"), "mtp"),
    "qwen3_next_mtp": "mtp",
}
UNAVAILABLE_METHODS = ("medusa", "mlp_speculator")
VALUE_ALIASES = {
    "kv_cache_dtype": {
        **{"auto": "bfloat16", "bf16": "bfloat16", "fp32": "float32"},
        "int8_per_token_head": "int8",
    },
    "quantization": {"bf16": "bfloat16"},
    f"{SPECULATIVE}.quantization": {"bf16": "bfloat16"},
    f"{SPECULATIVE}.verify_strategy": {"target_sampling": "target_match"},
}
# Values that others have and fdspec has not, and the nearest one that it has.
NEAREST_VALUES = {
    "kv_cache_dtype": dict.fromkeys(
        (
            *("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_per_token_head", "block_wise_fp8"),
            *("float8_e4m3fn", "float8_e4m3fn_zp", "int8_zp", "int4_zp"),
        ),
        "int8",
    ),
}
OFF_VALUES = (None, False, "off", "none", "null", "", "false")
