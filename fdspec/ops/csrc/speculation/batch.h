// SPDX-License-Identifier: Apache-2.0
// Drafting and verifying for all sequences of a step: checks the arguments, then goes from one
// sequence to the next.
#pragma once

#include <cstdint>
#include <vector>

#include "common/array_view.h"
#include "speculation/ngram.h"

namespace fdspec {

struct DraftBatch {
  std::vector<int32_t> tokens;
  std::vector<int64_t> splits;  // [sequences + 1]
};
FDSPEC_EXPORT DraftBatch ngram_match(const ArrayView& tokens, const ArrayView& splits,
                                     const ArrayView& max_draft, NgramLimits limits);

struct VerifiedBatch {
  std::vector<int32_t> accepted;  // indices of accepted draft tokens, in path order
  std::vector<int64_t> splits;    // [sequences + 1]
  std::vector<int32_t> num_accepted;
  std::vector<int32_t> next_tokens;
};
// `parents` is null for chains.
FDSPEC_EXPORT VerifiedBatch verify_drafts(const ArrayView& draft_tokens, const ArrayView* parents,
                                          const ArrayView& targets, const ArrayView& draft_splits);

}  // namespace fdspec
