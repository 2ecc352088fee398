// SPDX-License-Identifier: Apache-2.0
#include "elementwise/rms_norm.h"

#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

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

}  // namespace

void rms_norm(const RmsNormArgs& args, Slice slice) {
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float* x = args.x + row * args.dim;
    float* out = args.out + row * args.dim;
    const float mean = sum_of_squares(x, args.dim) / static_cast<float>(args.dim);
    const F16 root = sqrt(F16::broadcast(mean + args.epsilon));
    const F16 inverse = F16::broadcast(1.0f) / root;
    for (int64_t i = 0; i < args.dim; i += kLanes) {
      const int count = static_cast<int>(min_of<int64_t>(kLanes, args.dim - i));
      const F16 value = F16::load_partial(x + i, count) * inverse;
      (value * F16::load_partial(args.weight + i, count)).store_partial(out + i, count);
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
