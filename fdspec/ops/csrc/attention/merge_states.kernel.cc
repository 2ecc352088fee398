// SPDX-License-Identifier: Apache-2.0
#include "attention/merge_states.h"

#include <limits>

#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

void merge_attention_states(const MergeStatesArgs& args, Slice slice) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Range pairs = slice.share(args.pairs);
  for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
    const F16 lse_a = splat(args.lse_a[pair]), lse_b = splat(args.lse_b[pair]);
    const F16 largest = max(lse_a, lse_b);
    // An empty state weighs exactly 0, and what it holds is never multiplied: it may be NaN.
    const M16 has_a = lse_a > splat(-kInfinity), has_b = lse_b > splat(-kInfinity);
    const F16 weight_a = select(has_a, exp(lse_a - largest), F16::zero());
    const F16 weight_b = select(has_b, exp(lse_b - largest), F16::zero());
    const F16 total = weight_a + weight_b;
    const F16 inverse = select(has_a | has_b, splat(1.0f) / total, F16::zero());
    const F16 lse = select(has_a | has_b, largest + log(total), splat(-kInfinity));
    lse.store_partial(args.lse + pair, 1);
    const int64_t base = pair * args.head_dim;
    for (int64_t i = base; i < base + args.head_dim; i += kLanes) {
      const int width = static_cast<int>(min_of<int64_t>(kLanes, base + args.head_dim - i));
      const F16 a = select(has_a, F16::load_partial(args.out_a + i, width), F16::zero());
      const F16 b = select(has_b, F16::load_partial(args.out_b + i, width), F16::zero());
      (fma(a, weight_a, b * weight_b) * inverse).store_partial(args.out + i, width);
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
