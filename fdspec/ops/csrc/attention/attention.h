// SPDX-License-Identifier: Apache-2.0
// Cascade append attention: softmax(scale * q . k) . v of each row over the keys that it sees.
//
// A row's keys are taken in order of position in parts of kPartKeys, whatever the cache's block
// size is. Each part gives a state (m, l, o) in fp32: the largest score, the sum of the weights
// and the sum of weight * v; states are folded from left to right. So a row's bits are a function
// of its query and of its keys in their order, and of nothing else. Within a part:
//
//                float cache               bfloat16 cache
//   q            scale * q                 scale * log2(e) * q, rounded to bfloat16
//   score        a chain of fma over       a pair of chains for each 32 of head_dim, added up in
//                head_dim                  their order
//   weight       e^(score - m)             2^(score - m), cut to bfloat16
//   o            a chain of fma over keys  a pair of chains for each 32 keys, added up
//
// An int8 cache goes as a bfloat16 one, with the codes in the place of the keys and values, and
//
//   score        is multiplied by the key's scale
//   weight       l adds it uncut; o takes weight * scale of the value, rounded to bfloat16
//
// l adds the weights of keys 0..15, 16..31, 32..47, 48..63 as a tree, then the 16 sums as one. A
// pair of chains is one chain of fma over the even indices and one over the odd ones, both from 0,
// and their sum: what a tile product does with bfloat16 (common/tiles.h). Keys that a row does not
// see have weight 0.
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
  // Key i of a sequence is in its slot first_slot + i: the slots before hold nothing.
  int first_slot;
  float scale;
  float* out;  // [rows, heads * head_dim]
  const AttentionPlan* plan;
  float* workspace;  // attention_workspace_bytes(), aligned to 64
};

// Slices split the items of each level of the plan.
FDSPEC_DECLARE_TILE_KERNEL(cascade_append_attention, AttentionArgs)

// Queries of a tile at most, at any level.
inline constexpr int kTileQueries = 16;

// Scratch memory: offsets and sizes in floats. Sizes are upper bounds for all levels.
struct AttentionScratch {
  int64_t output_stride;  // of one query's o in a state
  // Of one slice.
  int64_t zeros;       // [padded head_dim] stands for keys that do not exist
  int64_t query_rows;  // [max_queries] int32
  int64_t queries;     // [max_queries, padded head_dim] scaled
  int64_t keys;        // [padded head_dim, kPartKeys] transposed
  int64_t values;      // [kPartKeys, padded head_dim]
  int64_t scales;      // two of [kPartKeys]: of the keys and values of an int8 cache
  int64_t scores;      // two of [kPartKeys, kTileQueries]
  int64_t weights;     // [kPartKeys, kTileQueries]
  int64_t tile;        // states of two tiles of queries
  int64_t running;     // [max_queries] states folded so far
  int64_t leading;     // [leading parts, max_queries] states of an item begun by another slice
  int64_t size;
  // Of all slices: [rows, heads] states after a shared prefix; behind the last slice's.
  int64_t shared;
  int64_t total_size;
};

// Floats that the states of so many queries take.
FDSPEC_EXPORT int64_t attention_states_floats(int64_t num_queries, int64_t output_stride);

FDSPEC_EXPORT AttentionScratch attention_scratch(const AttentionPlan& plan,
                                                 const AttentionShape& shape, int num_slices);

FDSPEC_EXPORT int64_t attention_workspace_bytes(const AttentionPlan& plan,
                                                const AttentionShape& shape, int num_slices);

FDSPEC_EXPORT void run_cascade_append_attention(const AttentionArgs& args, int num_slices);

// The same for one call by itself: makes the plan and takes the workspace of the calling thread.
FDSPEC_EXPORT void run_unplanned_attention(AttentionArgs args);

}  // namespace fdspec
