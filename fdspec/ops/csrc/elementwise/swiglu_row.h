// SPDX-License-Identifier: Apache-2.0
// Gates one vector of a row. Kernel files only.
#pragma once

#include "common/vec.h"
#include "elementwise/swiglu.h"

namespace fdspec {
namespace FDSPEC_ISA {

// out[i..] = silu(gate_up[i..]) * gate_up[dim + i..], up to kLanes values.
FDSPEC_INLINE void gate_vector(const float* gate_up, int64_t dim, int64_t i, float* out) {
  const int count = static_cast<int>(min_of<int64_t>(kLanes, dim - i));
  const F16 value = silu(F16::load_partial(gate_up + i, count));
  (value * F16::load_partial(gate_up + dim + i, count)).store_partial(out + i, count);
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
