// SPDX-License-Identifier: Apache-2.0
// The largest logit of each block of tokens of a row. Whoever has just computed logits finds them
// in its nearest cache; sampling then leaves out blocks in which no token can matter.
#pragma once

#include "common/dispatch.h"

namespace fdspec {

inline constexpr int64_t kBlockTokens = 64;

FDSPEC_INLINE int64_t num_token_blocks(int64_t vocab) {
  return (vocab + kBlockTokens - 1) / kBlockTokens;
}

struct PublishLogitsArgs {
  const float* logits;  // [rows, width] of neighbouring tokens, the first of which begins a block
  int64_t rows;
  int64_t width;
  float* out;  // [rows, out_stride], from the first of these tokens on
  int64_t out_stride;
  // [rows, maxima_stride], from their first block on. NaN counts as -inf.
  float* maxima;
  int64_t maxima_stride;
};

// Slices split the rows.
FDSPEC_DECLARE_KERNEL(publish_logits, PublishLogitsArgs)

}  // namespace fdspec
