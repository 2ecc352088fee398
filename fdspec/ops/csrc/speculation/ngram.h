// SPDX-License-Identifier: Apache-2.0
// Drafts copied from what followed the latest n-gram earlier in the same sequence.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace fdspec {

struct NgramLimits {
  int64_t max_ngram;
  int64_t min_ngram;
};

// Throws ArgumentError unless 1 <= min_ngram <= max_ngram.
FDSPEC_EXPORT void expect_limits(const NgramLimits& limits);

// Writes up to max_draft tokens to `draft` and returns how many: max_draft or, without a match, 0.
FDSPEC_EXPORT int64_t ngram_draft(const int32_t* tokens, int64_t length, NgramLimits limits,
                                  int64_t max_draft, int32_t* draft);

}  // namespace fdspec
