// SPDX-License-Identifier: Apache-2.0
#include "step/row_step.h"

#include <cstring>

#include "step/program.h"

namespace fdspec {
namespace {

// Up to this many activations every thread prepares all of them itself, which costs less than
// waiting for the others.
constexpr int64_t kMaxRedundantActivations = 2048;

}  // namespace

void EmbeddingStep::run(const StepFrame& frame, const Tile& tile) const {
  float* out = frame.address(out_, tile);
  const int32_t* token_ids = frame.inputs.token_ids + tile.rows.begin;
  const Range rows = tile.slice.share(tile.num_rows());
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    dequantize_row(layout_, weight_, token_ids[row], out + row * layout_.in_features);
  }
  tile.slice.sync();
}

ActivationArgs LinearStep::activation_args(const StepFrame& frame, const Tile& tile) const {
  const ValueInfo& input = frame.values[input_];
  const bool is_stored = input.activation == Activation::kPlain;
  ActivationArgs args;
  args.activation = input.activation;
  args.x = frame.address(is_stored ? input_ : input.source, tile);
  args.weight = input.norm_weight;
  args.epsilon = input.epsilon;
  args.rows = tile.num_rows();
  args.dim = input.width;
  args.out = nullptr;
  args.quantize = {nullptr,
                   nullptr,
                   args.rows,
                   args.dim,
                   args_.layout.group_blocks(),
                   args_.layout.zero_point()};
  args.scratch = tile.area.scratch;
  args.scratch_stride = frame.memory.max_input_width();
  return args;
}

void LinearStep::run(const StepFrame& frame, const Tile& tile) const {
  LinearArgs args = args_;
  args.rows = tile.num_rows();
  args.residual = residual_ == kNoValue ? nullptr : frame.address(residual_, tile);
  args.out = is_last_ ? frame.inputs.out + tile.rows.begin * args.layout.out_features
                      : frame.address(out_, tile);
  const ActivationArgs activation = activation_args(frame, tile);
  if (args.layout.is_integer() && !args.float_activations) {
    run_integer(args, activation, tile);
  } else {
    run_float(args, activation, tile);
  }
  tile.slice.sync();
}

void LinearStep::run_integer(const LinearArgs& args, ActivationArgs activation,
                             const Tile& tile) const {
  const Kernel<ActivationArgs> prepare = prepare_activations_kernel();
  const bool is_shared =
      tile.slice.count > 1 && args.rows * args.layout.in_features > kMaxRedundantActivations;
  activation.quantize.out = is_shared ? tile.area.blocks : tile.own.blocks;
  if (is_shared) {
    prepare(activation, tile.slice);
    tile.slice.sync();
  } else {
    activation.scratch = tile.own.scratch;
    prepare(activation, {0, 1, nullptr});
  }
  integer_linear_kernel()({args, activation.quantize.out}, tile.slice);
}

void LinearStep::run_float(LinearArgs args, ActivationArgs activation, const Tile& tile) const {
  args.x = activation.x;
  if (activation.activation != Activation::kPlain) {
    activation.out = tile.area.activations;
    prepare_activations_kernel()(activation, tile.slice);
    tile.slice.sync();
    args.x = activation.out;
  }
  const int64_t sums_per_slice = tile.area.capacity * kMaxFloatPanels * kPanelChannels;
  float_linear_kernel()({args, tile.area.sums, sums_per_slice}, tile.slice);
}

void RotateAppendStep::run(const StepFrame& frame, const Tile& tile) const {
  RotateAppendArgs args = args_;
  args.qkv = frame.address(qkv_, tile);
  args.rows = tile.num_rows();
  args.positions = frame.inputs.positions + tile.rows.begin;
  args.slots = frame.inputs.slots + tile.rows.begin;
  args.query = frame.address(query_, tile);
  rotate_append_kernel()(args, tile.slice);
  tile.slice.sync();
}

void SelectStep::run(const StepFrame& frame, const Tile& tile) const {
  const ValueInfo& input = frame.values[input_];
  const float* source = frame.memory.global_address(input);
  float* out = frame.address(out_, tile);
  const int64_t* selected = frame.inputs.selected_rows + tile.rows.begin;
  const Range rows = tile.slice.share(tile.num_rows());
  const size_t num_bytes = static_cast<size_t>(input.width) * sizeof(float);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    std::memcpy(out + row * input.width, source + selected[row] * input.width, num_bytes);
  }
  tile.slice.sync();
}

}  // namespace fdspec
