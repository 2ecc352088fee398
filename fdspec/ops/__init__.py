# SPDX-License-Identifier: Apache-2.0
"""Public ops: one function each, with a reference from its definition and compiled CPU kernels.

Arrays are numpy arrays or Paddle CPU tensors; outputs are of the first argument's kind. Every row
of a result has the same bits whatever other rows, threads or instruction set computed it.
Importing this package imports neither paddle nor the compiled module.
"""

from fdspec.ops.append_paged_kv import append_paged_kv
from fdspec.ops.cascade_append_attention import cascade_append_attention
from fdspec.ops.compact_kv import compact_kv
from fdspec.ops.dispatch import (
    isa,
    num_threads,
    set_isa,
    set_num_threads,
    supported_isas,
    wake_threads,
)
from fdspec.ops.embedding import embedding
from fdspec.ops.experts import expert_mlp, route_experts
from fdspec.ops.merge_attention_states import merge_attention_states
from fdspec.ops.ngram_index import NgramIndex
from fdspec.ops.ngram_match import ngram_match
from fdspec.ops.prediction_draft import prediction_draft
from fdspec.ops.quantize_weight import (
    concat_weights,
    dequantize_weight,
    pack_weight,
    packed_layout_fingerprint,
    quantize_weight,
    unpack_weight,
)
from fdspec.ops.rms_norm import rms_norm
from fdspec.ops.rope import rope
from fdspec.ops.row_logprobs import row_logprobs
from fdspec.ops.row_params import RowParams
from fdspec.ops.sample_rows import num_token_blocks, processed_probabilities, sample_rows
from fdspec.ops.step_program import StepProgram, Value
from fdspec.ops.suffix_tree import SuffixTree, TreeDraft
from fdspec.ops.swiglu import swiglu
from fdspec.ops.verify import Verification, verify_chain, verify_tree
from fdspec.ops.weight_only_linear import weight_only_linear
from fdspec.ops.weights import PackedWeight, WeightFormat

__all__ = [
    "NgramIndex",
    "PackedWeight",
    "RowParams",
    "StepProgram",
    "SuffixTree",
    "TreeDraft",
    "Value",
    "Verification",
    "WeightFormat",
    "append_paged_kv",
    "cascade_append_attention",
    "compact_kv",
    "concat_weights",
    "dequantize_weight",
    "embedding",
    "expert_mlp",
    "isa",
    "merge_attention_states",
    "ngram_match",
    "num_threads",
    "pack_weight",
    "packed_layout_fingerprint",
    "prediction_draft",
    "processed_probabilities",
    "quantize_weight",
    "rms_norm",
    "rope",
    "route_experts",
    "row_logprobs",
    "num_token_blocks",
    "sample_rows",
    "set_isa",
    "set_num_threads",
    "supported_isas",
    "swiglu",
    "unpack_weight",
    "verify_chain",
    "verify_tree",
    "wake_threads",
    "weight_only_linear",
]
