// SPDX-License-Identifier: Apache-2.0
// The weighted sum of what a row's experts gave: out = residual, then fma(factor, result, out) for
// each chosen expert in the order in which they were chosen.
#pragma once

#include "common/dispatch.h"

namespace fdspec {

struct AddExpertsArgs {
  const float* results;   // [places, dim]
  const int32_t* places;  // [rows, num_chosen] where the result of each choice is
  const float* factors;   // [rows, num_chosen]
  const float* residual;  // [rows, dim] or null; may be out
  float* out;             // [rows, dim]
  int64_t rows;
  int64_t num_chosen;
  int64_t dim;
};

// Slices split the rows.
FDSPEC_DECLARE_KERNEL(add_experts, AddExpertsArgs)

}  // namespace fdspec
