// SPDX-License-Identifier: Apache-2.0
// From a row's projections to what attention reads: norm of each head (where the model has one),
// rotation, and the key and value in the cache.
#pragma once

#include "attention/attention_plan.h"
#include "attention/paged_cache.h"
#include "common/dispatch.h"

namespace fdspec {

// Of a key that is being made; the widest heads of known models have 256.
inline constexpr int kMaxHeadDim = 512;

// Norm over each head before the rotation; weight is null if there is none.
struct HeadNorm {
  const float* weight;  // [head_dim]
  float epsilon;
};

struct RotateAppendArgs {
  const float* qkv;  // [rows, (heads + 2 * kv_heads) * head_dim]: queries, keys, values
  int64_t rows;
  AttentionShape shape;
  HeadNorm query_norm;
  HeadNorm key_norm;
  const int32_t* positions;  // [rows]
  const float* cos;          // [max_positions, head_dim / 2]
  const float* sin;          // [max_positions, head_dim / 2]
  float* query;              // [rows, heads, head_dim]
  PagedCache cache;
  const int64_t* slots;  // [rows]
};

// Slices split the heads of all rows.
FDSPEC_DECLARE_KERNEL(rotate_append, RotateAppendArgs)

}  // namespace fdspec
