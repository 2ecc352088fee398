# SPDX-License-Identifier: Apache-2.0
"""Public ops: one function each, with a reference from its definition and compiled CPU kernels.

Arrays are numpy arrays or Paddle CPU tensors; outputs are of the first argument's kind. Every row
of a result has the same bits whatever other rows, threads or instruction set computed it.
Importing this package imports neither paddle nor the compiled module.
"""

from fdspec.ops.append_paged_kv import append_paged_kv
from fdspec.ops.cascade_append_attention import cascade_append_attention
from fdspec.ops.compact_kv import compact_kv
from fdspec.ops.dispatch import isa, num_threads, set_isa, set_num_threads, supported_isas
from fdspec.ops.merge_attention_states import merge_attention_states
from fdspec.ops.ngram_match import ngram_match
from fdspec.ops.rms_norm import rms_norm
from fdspec.ops.row_logprobs import row_logprobs
from fdspec.ops.row_params import RowParams
from fdspec.ops.sample_rows import processed_probabilities, sample_rows
from fdspec.ops.verify import Verification, verify_chain, verify_tree

__all__ = [
    "RowParams",
    "Verification",
    "append_paged_kv",
    "cascade_append_attention",
    "compact_kv",
    "isa",
    "merge_attention_states",
    "ngram_match",
    "num_threads",
    "processed_probabilities",
    "rms_norm",
    "row_logprobs",
    "sample_rows",
    "set_isa",
    "set_num_threads",
    "supported_isas",
    "verify_chain",
    "verify_tree",
]
