// SPDX-License-Identifier: Apache-2.0
#include "elementwise/swiglu.h"

#include "elementwise/swiglu_row.h"

namespace fdspec {
namespace FDSPEC_ISA {

void swiglu(const SwigluArgs& args, Slice slice) {
  // A single row is worth more than one thread, so vectors are shared out, not rows.
  const int64_t vectors_per_row = (args.dim + kLanes - 1) / kLanes;
  const Range vectors = slice.share(args.rows * vectors_per_row);
  for (int64_t vector = vectors.begin; vector < vectors.end; ++vector) {
    const int64_t row = vector / vectors_per_row;
    const int64_t i = vector % vectors_per_row * kLanes;
    gate_vector(args.gate_up + row * 2 * args.dim, args.dim, i, args.out + row * args.dim);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
