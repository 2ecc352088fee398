// SPDX-License-Identifier: Apache-2.0
// Where an output stands in the text that somebody predicted for it.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace fdspec {

// Index of the predicted token that would come next, or -1 if the output is nowhere near. The
// longest match of the output's last tokens (up to kMaxPredictionMatch) counts, ties by how little
// it would have been moved from its place. A match of one token counts only in its place.
FDSPEC_EXPORT int64_t prediction_match(const int32_t* prediction, int64_t num_predicted,
                                       const int32_t* output, int64_t num_output);

inline constexpr int64_t kMaxPredictionMatch = 32;

}  // namespace fdspec
