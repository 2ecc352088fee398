// SPDX-License-Identifier: Apache-2.0
#include "step/activations.h"

#include "elementwise/rms_norm_row.h"
#include "elementwise/swiglu_row.h"
#include "linear/quantize_row.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

// Where a row of activations is after computing it into `out`, if there was anything to compute.
FDSPEC_INLINE const float* activate(const ActivationArgs& args, int64_t row, float* out) {
  switch (args.activation) {
    case Activation::kPlain:
      return args.x + row * args.dim;
    case Activation::kNormalized:
      normalize_row(args.x + row * args.dim, args.weight, args.epsilon, args.dim, out);
      return out;
    default: {
      const float* gate_up = args.x + row * 2 * args.dim;
      for (int64_t i = 0; i < args.dim; i += kLanes) gate_vector(gate_up, args.dim, i, out);
      return out;
    }
  }
}

}  // namespace

void prepare_activations(const ActivationArgs& args, Slice slice) {
  const Range rows = slice.share(args.rows);
  float* scratch = args.scratch + slice.index * args.scratch_stride;
  QuantizeRowsArgs quantize = args.quantize;
  quantize.dim = args.dim;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    if (args.out != nullptr) {
      activate(args, row, args.out + row * args.dim);
    } else {
      quantize_row(quantize, activate(args, row, scratch), row);
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
