// SPDX-License-Identifier: Apache-2.0
#include "speculation/verify.h"

namespace fdspec {

int64_t verify_draft(const int32_t* draft_tokens, const int32_t* parents, int64_t num_draft,
                     const int32_t* targets, int32_t* accepted, int32_t* next_token) {
  int64_t num_accepted = 0, current = -1;
  // Children come after their parent, so one pass meets the whole path.
  for (int64_t i = 0; i < num_draft; ++i) {
    const int64_t parent = parents == nullptr ? i - 1 : parents[i];
    if (parent != current || draft_tokens[i] != targets[current + 1]) continue;
    accepted[num_accepted++] = static_cast<int32_t>(i);
    current = i;
  }
  *next_token = targets[current + 1];
  return num_accepted;
}

}  // namespace fdspec
