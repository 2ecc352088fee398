// SPDX-License-Identifier: Apache-2.0
// Gated activation: out[r][i] = silu(gate[r][i]) * up[r][i].
#pragma once

#include "common/dispatch.h"

namespace fdspec {

struct SwigluArgs {
  const float* gate_up;  // [rows, 2 * dim]: gate, then up
  float* out;            // [rows, dim]
  int64_t rows;
  int64_t dim;
};

// Slices split the values of all rows.
FDSPEC_DECLARE_KERNEL(swiglu, SwigluArgs)

FDSPEC_EXPORT void run_swiglu(const SwigluArgs& args);

}  // namespace fdspec
