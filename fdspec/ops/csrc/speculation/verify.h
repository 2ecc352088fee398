// SPDX-License-Identifier: Apache-2.0
// Which draft tokens equal the target's own.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace fdspec {

// Walks down one sequence's draft. targets[0] follows the last committed token, targets[1 + i]
// follows draft token i. parents[i] < i, -1 for children of the last committed token; null for a
// chain. Writes the indices of the accepted tokens in path order, and the target's token after the
// last of them; returns how many were accepted.
FDSPEC_EXPORT int64_t verify_draft(const int32_t* draft_tokens, const int32_t* parents,
                                   int64_t num_draft, const int32_t* targets, int32_t* accepted,
                                   int32_t* next_token);

}  // namespace fdspec
