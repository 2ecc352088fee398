// SPDX-License-Identifier: Apache-2.0
// Rotates one head. Kernel files only.
#pragma once

#include "common/vec.h"
#include "elementwise/rope.h"

namespace fdspec {
namespace FDSPEC_ISA {

// x and out are [2 * half]; out may be x. cos and sin are [half], those of the position.
FDSPEC_INLINE void rotate_head(const float* x, const float* cos, const float* sin, int64_t half,
                               float* out) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int count = static_cast<int>(min_of<int64_t>(kLanes, half - i));
    const F16 c = F16::load_partial(cos + i, count);
    const F16 s = F16::load_partial(sin + i, count);
    const F16 a = F16::load_partial(x + i, count);
    const F16 b = F16::load_partial(x + half + i, count);
    fnma(b, s, a * c).store_partial(out + i, count);
    fma(a, s, b * c).store_partial(out + half + i, count);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
