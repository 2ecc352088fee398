// SPDX-License-Identifier: Apache-2.0
// Attention over two sets of keys from the attention over each: the join of cascade levels.
#pragma once

#include "common/dispatch.h"

namespace fdspec {

struct MergeStatesArgs {
  const float* out_a;  // [pairs, head_dim]; a pair is a row and a head
  const float* lse_a;  // [pairs] natural log of the sum of exp(score); -inf: no keys
  const float* out_b;
  const float* lse_b;
  float* out;
  float* lse;
  int64_t pairs;
  int64_t head_dim;
};

// Slices split the pairs.
FDSPEC_DECLARE_KERNEL(merge_attention_states, MergeStatesArgs)

FDSPEC_EXPORT void run_merge_attention_states(const MergeStatesArgs& args);

}  // namespace fdspec
