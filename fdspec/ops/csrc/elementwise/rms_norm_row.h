// SPDX-License-Identifier: Apache-2.0
// Normalises one row. Kernel files only.
#pragma once

#include "common/vec.h"
#include "elementwise/rms_norm.h"

namespace fdspec {
namespace FDSPEC_ISA {

// Lane l adds x[l]^2, x[l + 16]^2, ... in order, in four interleaved chains; then the chains and
// the lanes are added as trees.
FDSPEC_INLINE float sum_of_squares(const float* x, int64_t dim) {
  constexpr int kChains = 4;
  F16 sums[kChains] = {F16::zero(), F16::zero(), F16::zero(), F16::zero()};
  int64_t i = 0;
  for (; i + kChains * kLanes <= dim; i += kChains * kLanes) {
    for (int chain = 0; chain < kChains; ++chain) {
      const F16 value = F16::load(x + i + chain * kLanes);
      sums[chain] = fma(value, value, sums[chain]);
    }
  }
  for (int chain = 0; i < dim; i += kLanes, ++chain) {
    const int count = static_cast<int>(min_of<int64_t>(kLanes, dim - i));
    const F16 value = F16::load_partial(x + i, count);
    sums[chain] = fma(value, value, sums[chain]);
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])).reduce_add();
}

// out may be x.
FDSPEC_INLINE void normalize_row(const float* x, const float* weight, float epsilon, int64_t dim,
                                 float* out) {
  const float mean = sum_of_squares(x, dim) / static_cast<float>(dim);
  const F16 root = sqrt(F16::broadcast(mean + epsilon));
  const F16 inverse = F16::broadcast(1.0f) / root;
  for (int64_t i = 0; i < dim; i += kLanes) {
    const int count = static_cast<int>(min_of<int64_t>(kLanes, dim - i));
    const F16 value = F16::load_partial(x + i, count) * inverse;
    (value * F16::load_partial(weight + i, count)).store_partial(out + i, count);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
