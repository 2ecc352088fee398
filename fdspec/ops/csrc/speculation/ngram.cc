// SPDX-License-Identifier: Apache-2.0
#include "speculation/ngram.h"

#include <algorithm>
#include <string>

#include "common/array_view.h"

namespace fdspec {
namespace {

// How many tokens before `end` equal the last tokens of the sequence, counted up to `limit`.
int64_t match_length(const int32_t* tokens, int64_t length, int64_t end, int64_t limit) {
  limit = std::min(limit, end);
  int64_t matched = 0;
  while (matched < limit && tokens[end - 1 - matched] == tokens[length - 1 - matched]) ++matched;
  return matched;
}

// The last position before `end` that holds `token`, or -1. Blocks are compared without a branch
// in them, which compilers turn into vector compares.
int64_t find_before(const int32_t* tokens, int64_t end, int32_t token) {
  constexpr int64_t kBlock = 64;
  for (; end >= kBlock; end -= kBlock) {
    const int32_t* block = tokens + end - kBlock;
    int32_t any = 0;
    for (int64_t i = 0; i < kBlock; ++i) any |= block[i] == token;
    if (any != 0) break;
  }
  while (end > 0 && tokens[end - 1] != token) --end;
  return end - 1;
}

}  // namespace

void expect_limits(const NgramLimits& limits) {
  if (limits.min_ngram >= 1 && limits.max_ngram >= limits.min_ngram) return;
  throw ArgumentError("min_ngram, max_ngram: must be 1 <= min_ngram <= max_ngram, got " +
                      std::to_string(limits.min_ngram) + " and " +
                      std::to_string(limits.max_ngram));
}

int64_t ngram_draft(const int32_t* tokens, int64_t length, NgramLimits limits, int64_t max_draft,
                    int32_t* draft) {
  if (max_draft <= 0 || length < 2) return 0;
  // Ends of matches are met from right to left. A longer match wins; among equally long ones the
  // first that has max_draft tokens after it, else the last.
  int64_t best_length = limits.min_ngram - 1, best_end = 0;
  for (int64_t end = length - 1; end > 0; --end) {
    end = find_before(tokens, end, tokens[length - 1]) + 1;
    if (end == 0) break;
    const int64_t matched = match_length(tokens, length, end, limits.max_ngram);
    const bool is_longer = matched > best_length;
    const bool has_room = best_end > 0 && length - best_end >= max_draft;
    if (!is_longer && (matched < best_length || best_end == 0 || has_room)) continue;
    best_length = matched;
    best_end = end;
    if (matched == limits.max_ngram && length - end >= max_draft) break;
  }
  if (best_end == 0) return 0;
  // Past the end of the text the draft goes on with itself: a loop is drafted at full length.
  const int64_t period = length - best_end;
  for (int64_t i = 0; i < max_draft; ++i) {
    draft[i] = i < period ? tokens[best_end + i] : draft[i - period];
  }
  return max_draft;
}

}  // namespace fdspec
