// SPDX-License-Identifier: Apache-2.0
#include "elementwise/rope.h"

#include "elementwise/rope_row.h"

namespace fdspec {
namespace FDSPEC_ISA {

void rope(const RopeArgs& args, Slice slice) {
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float* cos = args.cos + args.positions[row] * args.half;
    const float* sin = args.sin + args.positions[row] * args.half;
    for (int64_t head = 0; head < args.heads; ++head) {
      const int64_t offset = (row * args.heads + head) * 2 * args.half;
      rotate_head(args.x + offset, cos, sin, args.half, args.out + offset);
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
