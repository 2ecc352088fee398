// SPDX-License-Identifier: Apache-2.0
// Cascade append attention: softmax(scale * q . k) . v of each row over the keys that it sees.
//
// A row's keys are taken in order of position in parts of kPartKeys, whatever the cache's block
// size is. Each part gives a state (m, l, o) in fp32: the largest score, the sum of exp(score - m)
// and the sum of exp(score - m) * v; states are folded from left to right. Within a part, scores
// are fma chains over head_dim, o is an fma chain over the keys, and l is a fixed tree. So a row's
// bits are a function of its query and of its keys in their order, and of nothing else.
#pragma once

#include "attention/attention_plan.h"
#include "attention/paged_cache.h"
#include "common/dispatch.h"

namespace fdspec {

struct AttentionArgs {
  const float* query;  // [rows, heads, head_dim]
  PagedCache cache;
  const int32_t* block_table;  // [sequences, max_blocks]
  int64_t max_blocks;
  AttentionRows rows;
  AttentionShape shape;
  float scale;
  float* out;  // [rows, heads * head_dim]
  const AttentionPlan* plan;
  float* workspace;  // attention_workspace_bytes(), aligned to 64
};

// Slices split the plan's items.
FDSPEC_DECLARE_KERNEL(cascade_append_attention, AttentionArgs)

// Scratch memory of one slice: offsets and sizes in floats.
struct AttentionScratch {
  int64_t state_stride;  // of one query's state: m, l, padding, o
  int64_t zeros;         // [head_dim] stands for keys that do not exist
  int64_t queries;       // [max_queries, head_dim] scaled
  int64_t keys;          // [head_dim, kPartKeys] transposed
  int64_t values;        // [kPartKeys, padded head_dim]
  int64_t scores;        // [kMaxTileRows, kPartKeys]
  int64_t part;          // [max_queries] states of the current part
  int64_t running;       // [max_queries] states folded so far
  int64_t leading;       // [leading parts, max_queries] states of an item begun by another slice
  int64_t size;
};

FDSPEC_EXPORT AttentionScratch attention_scratch(const AttentionPlan& plan,
                                                 const AttentionShape& shape, int num_slices);

FDSPEC_EXPORT int64_t attention_workspace_bytes(const AttentionPlan& plan,
                                                const AttentionShape& shape, int num_slices);

FDSPEC_EXPORT void run_cascade_append_attention(const AttentionArgs& args, int num_slices);

// The same for one call by itself: makes the plan and takes the workspace of the calling thread.
FDSPEC_EXPORT void run_unplanned_attention(AttentionArgs args);

}  // namespace fdspec
