// SPDX-License-Identifier: Apache-2.0
#include "experts/add_experts.h"

#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

void add_experts(const AddExpertsArgs& args, Slice slice) {
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int32_t* places = args.places + row * args.num_chosen;
    const float* factors = args.factors + row * args.num_chosen;
    for (int64_t i = 0; i < args.dim; i += kLanes) {
      const int count = static_cast<int>(min_of<int64_t>(kLanes, args.dim - i));
      F16 sum = args.residual == nullptr
                    ? F16::zero()
                    : F16::load_partial(args.residual + row * args.dim + i, count);
      for (int64_t choice = 0; choice < args.num_chosen; ++choice) {
        const float* result = args.results + places[choice] * args.dim + i;
        sum = fma(splat(factors[choice]), F16::load_partial(result, count), sum);
      }
      sum.store_partial(args.out + row * args.dim + i, count);
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
