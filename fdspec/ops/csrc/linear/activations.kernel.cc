// SPDX-License-Identifier: Apache-2.0
#include "linear/activations.h"

#include "elementwise/rms_norm_row.h"
#include "elementwise/swiglu_row.h"
#include "linear/quantize_row.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

// Where a row of activations is after computing it into `out`, if there was anything to compute.
FDSPEC_INLINE const float* compute(const ActivationArgs& args, int64_t row, float* out) {
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

FDSPEC_INLINE void write_row(const ActivationArgs& args, int64_t row, const float* values) {
  float* out = args.out + row * args.dim;
  if (values == out) return;
  for (int64_t i = 0; i < args.dim; i += kLanes) {
    const int count = static_cast<int>(min_of<int64_t>(kLanes, args.dim - i));
    F16::load_partial(values + i, count).store_partial(out + i, count);
  }
}

}  // namespace

void prepare_activations(const ActivationArgs& args, Slice slice) {
  const Range rows = slice.share(args.rows);
  float* scratch = args.scratch + slice.index * args.scratch_stride;
  QuantizeRowsArgs quantize = args.quantize;
  quantize.dim = args.dim;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t source = args.sources == nullptr ? row : args.sources[row];
    if (source < 0) continue;
    if (args.out != nullptr) {
      write_row(args, row, compute(args, source, args.out + row * args.dim));
    } else {
      quantize_row(quantize, compute(args, source, scratch), row);
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
