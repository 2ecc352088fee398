// SPDX-License-Identifier: Apache-2.0
#include "elementwise/swiglu.h"

#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

void swiglu(const SwigluArgs& args, Slice slice) {
  // A single row is worth more than one thread, so vectors are shared out, not rows.
  const int64_t vectors_per_row = (args.dim + kLanes - 1) / kLanes;
  const Range vectors = slice.share(args.rows * vectors_per_row);
  for (int64_t vector = vectors.begin; vector < vectors.end; ++vector) {
    const int64_t row = vector / vectors_per_row;
    const int64_t i = vector % vectors_per_row * kLanes;
    const int count = static_cast<int>(min_of<int64_t>(kLanes, args.dim - i));
    const float* gate = args.gate_up + row * 2 * args.dim + i;
    const F16 value = silu(F16::load_partial(gate, count));
    (value * F16::load_partial(gate + args.dim, count))
        .store_partial(args.out + row * args.dim + i, count);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
