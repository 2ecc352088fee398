// SPDX-License-Identifier: Apache-2.0
// The most likely token of rows whose logits come in pieces.
#pragma once

#include "common/dispatch.h"

namespace fdspec {

// The best token so far of a row: the lowest of those with the largest logit, where NaN counts as
// -inf and +inf as the largest float, as in sampling at temperature 0.
struct BestToken {
  float logit;
  int32_t token;
};

struct ArgmaxArgs {
  const float* logits;  // [rows, width] of the tokens first_token, first_token + 1, ...
  int64_t rows;
  int64_t width;
  int32_t first_token;
  // [rows] best of all tokens before first_token; updated. {-inf, 0} to start with.
  BestToken* best;
};

// Slices split the rows.
FDSPEC_DECLARE_KERNEL(update_argmax, ArgmaxArgs)

}  // namespace fdspec
