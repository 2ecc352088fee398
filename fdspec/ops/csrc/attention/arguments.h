// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of attention and of the KV cache's ops and fills in all but the outputs.
#pragma once

#include "attention/attention.h"
#include "attention/merge_states.h"
#include "attention/paged_cache.h"
#include "common/array_view.h"

namespace fdspec {

// Keys and values of one layer, [num_blocks, num_kv_heads, block_size, head_dim] each, or of int8
// with head_dim + kScaleBytes in the last axis.
FDSPEC_EXPORT PagedCache paged_cache(const ArrayView& key_cache, const ArrayView& value_cache,
                                     bool writes);

// Each slot must be `lowest` or higher and inside the cache.
FDSPEC_EXPORT void expect_slots(const char* name, const int64_t* slots, int64_t count,
                                int64_t lowest, const PagedCache& cache);

FDSPEC_EXPORT void expect_heads(const AttentionShape& shape);

// The rows must describe sequences, and the block table must hold a block for each slot of theirs.
FDSPEC_EXPORT void expect_attention_rows(const AttentionArgs& args);

FDSPEC_EXPORT AppendArgs append_args(const ArrayView& key, const ArrayView& value,
                                     const ArrayView& key_cache, const ArrayView& value_cache,
                                     const ArrayView& slots);

FDSPEC_EXPORT CompactArgs compact_args(const ArrayView& key_cache, const ArrayView& value_cache,
                                       const ArrayView& source_slots,
                                       const ArrayView& destination_slots);

// All but plan, workspace and output.
FDSPEC_EXPORT AttentionArgs attention_args(const ArrayView& query, const ArrayView& key_cache,
                                           const ArrayView& value_cache,
                                           const ArrayView& block_table,
                                           const ArrayView& row_splits,
                                           const ArrayView& context_lens, const ArrayView& parents,
                                           float scale);

FDSPEC_EXPORT MergeStatesArgs merge_states_args(const ArrayView& output_a, const ArrayView& lse_a,
                                                const ArrayView& output_b, const ArrayView& lse_b);

}  // namespace fdspec
