// SPDX-License-Identifier: Apache-2.0
#include "elementwise/rope.h"

#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

void rope(const RopeArgs& args, Slice slice) {
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float* cos = args.cos + args.positions[row] * args.half;
    const float* sin = args.sin + args.positions[row] * args.half;
    for (int64_t i = 0; i < args.half; i += kLanes) {
      const int count = static_cast<int>(min_of<int64_t>(kLanes, args.half - i));
      const F16 c = F16::load_partial(cos + i, count);
      const F16 s = F16::load_partial(sin + i, count);
      for (int64_t head = 0; head < args.heads; ++head) {
        const int64_t first = (row * args.heads + head) * 2 * args.half + i;
        const int64_t second = first + args.half;
        const F16 a = F16::load_partial(args.x + first, count);
        const F16 b = F16::load_partial(args.x + second, count);
        fnma(b, s, a * c).store_partial(args.out + first, count);
        fma(a, s, b * c).store_partial(args.out + second, count);
      }
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
