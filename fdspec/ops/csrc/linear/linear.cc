// SPDX-License-Identifier: Apache-2.0
#include "linear/linear.h"

namespace fdspec {
namespace {

// Products of weight bytes and rows that are worth a thread.
constexpr int64_t kMinWorkPerSlice = 32768;

// Up to this many activations every thread quantises all rows itself, which costs less than
// waiting for the others.
constexpr int64_t kMaxRedundantActivations = 2048;

bool is_integer_product(const LinearArgs& args) {
  return args.layout.is_integer() && !args.float_activations;
}

bool quantizes_redundantly(const LinearArgs& args) {
  return args.rows * args.layout.in_features <= kMaxRedundantActivations;
}

int64_t sums_per_slice(const LinearArgs& args) {
  return args.rows * kMaxFloatPanels * kPanelChannels;
}

void run_integer(const LinearArgs& args, int num_slices, QuantizedBlock* blocks) {
  const auto quantize = quantize_rows_kernel();
  const auto multiply = integer_linear_kernel();
  const int64_t num_blocks = num_quantized_blocks(args.rows, args.layout.in_features);
  const bool redundant = quantizes_redundantly(args);
  parallel(num_slices, [&](Slice slice) {
    QuantizedBlock* own = redundant ? blocks + slice.index * num_blocks : blocks;
    const QuantizeRowsArgs rows{args.x,
                                own,
                                args.rows,
                                args.layout.in_features,
                                args.layout.group_blocks(),
                                args.layout.zero_point()};
    quantize(rows, redundant ? Slice{0, 1, nullptr} : slice);
    if (!redundant) slice.sync();
    multiply({args, own}, slice);
  });
}

}  // namespace

int linear_slices(const LinearArgs& args) {
  return slices_for(args.layout.total_bytes() * args.rows, kMinWorkPerSlice);
}

int64_t linear_workspace_bytes(const LinearArgs& args, int num_slices) {
  if (!is_integer_product(args)) {
    return num_slices * sums_per_slice(args) * static_cast<int64_t>(sizeof(float));
  }
  const int64_t num_blocks = num_quantized_blocks(args.rows, args.layout.in_features);
  return (quantizes_redundantly(args) ? num_slices : 1) * num_blocks *
         static_cast<int64_t>(sizeof(QuantizedBlock));
}

void run_linear(const LinearArgs& args, int num_slices, void* workspace) {
  if (is_integer_product(args)) {
    return run_integer(args, num_slices, static_cast<QuantizedBlock*>(workspace));
  }
  const FloatLinearArgs float_args{args, static_cast<float*>(workspace), sums_per_slice(args)};
  launch(float_linear_kernel(), float_args, num_slices);
}

}  // namespace fdspec
