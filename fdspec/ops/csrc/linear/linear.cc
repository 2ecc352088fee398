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

// Two regions and no meeting point inside one: a thread that the system has put aside then delays
// nobody but itself.
void run_integer(const LinearArgs& args, int num_slices, QuantizedBlock* blocks) {
  const Kernel<QuantizeRowsArgs> quantize = quantize_rows_kernel();
  const Kernel<IntegerLinearArgs> multiply = integer_linear_kernel();
  const PackedLayout& layout = args.layout;
  QuantizeRowsArgs rows{
      args.x, blocks, args.rows, layout.in_features, layout.group_blocks(), layout.zero_point()};
  if (!quantizes_redundantly(args)) {
    launch(quantize, rows, num_slices);
    return launch(multiply, {args, blocks}, num_slices);
  }
  const int64_t num_blocks = num_quantized_blocks(args.rows, layout.in_features);
  parallel(num_slices, [&](Slice slice) {
    QuantizeRowsArgs own = rows;
    own.out = blocks + slice.index * num_blocks;
    quantize(own, {0, 1, nullptr});
    multiply({args, own.out}, slice);
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
