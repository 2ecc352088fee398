// SPDX-License-Identifier: Apache-2.0
#include "elementwise/rms_norm.h"

#include "elementwise/rms_norm_row.h"

namespace fdspec {
namespace FDSPEC_ISA {

void rms_norm(const RmsNormArgs& args, Slice slice) {
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t offset = row * args.dim;
    normalize_row(args.x + offset, args.weight, args.epsilon, args.dim, args.out + offset);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
