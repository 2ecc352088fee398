// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding, half-rotation layout: component i of a head turns with component
// i + half by the angle of its position.
#pragma once

#include "common/dispatch.h"

namespace fdspec {

struct RopeArgs {
  const float* x;            // [rows, heads, 2 * half]
  const int32_t* positions;  // [rows], each a row of the tables
  const float* cos;          // [max_positions, half]
  const float* sin;          // [max_positions, half]
  float* out;                // like x; may be x
  int64_t rows;
  int64_t heads;
  int64_t half;
};

// Slices split the rows.
FDSPEC_DECLARE_KERNEL(rope, RopeArgs)

// Query and key in one parallel region.
FDSPEC_EXPORT void run_rope(const RopeArgs& query, const RopeArgs& key);

}  // namespace fdspec
