// SPDX-License-Identifier: Apache-2.0
#include "step/row_step.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "step/program.h"

namespace fdspec {
namespace {

// Up to this many activations every thread prepares all of them itself, which costs less than
// waiting for the others.
constexpr int64_t kMaxRedundantActivations = 2048;

constexpr Slice kAlone{0, 1, nullptr};

// To nearest, ties to even; what is not a number stays one.
uint16_t round_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

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
  args.sources = nullptr;
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
  const ActivationArgs activation = activation_args(frame, tile);
  const Prepared input =
      is_integer() ? prepare_blocks(activation, tile) : prepare_floats(activation, tile);
  if (is_last_ && frame.inputs.out == nullptr) return choose_best(frame, input, tile);
  if (is_last_ && frame.inputs.block_maxima != nullptr) return publish(frame, input, tile);
  LinearArgs args = args_;
  args.rows = tile.num_rows();
  args.residual = residual_ == kNoValue ? nullptr : frame.address(residual_, tile);
  args.out = is_last_ ? frame.inputs.out + tile.rows.begin * args.layout.out_features
                      : frame.address(out_, tile);
  multiply(args, input, tile.area, tile.slice);
  tile.slice.sync();
}

LinearStep::Prepared LinearStep::prepare_blocks(ActivationArgs activation, const Tile& tile) const {
  const Kernel<ActivationArgs> prepare = prepare_activations_kernel();
  const bool is_shared =
      tile.slice.count > 1 && activation.rows * activation.dim > kMaxRedundantActivations;
  activation.quantize.out = is_shared ? tile.area.blocks : tile.own.blocks;
  if (is_shared) {
    prepare(activation, tile.slice);
    tile.slice.sync();
  } else {
    activation.scratch = tile.own.scratch;
    prepare(activation, {0, 1, nullptr});
  }
  return {activation.quantize.out, nullptr};
}

LinearStep::Prepared LinearStep::prepare_floats(ActivationArgs activation, const Tile& tile) const {
  if (activation.activation == Activation::kPlain) return {nullptr, activation.x};
  activation.out = tile.area.activations;
  prepare_activations_kernel()(activation, tile.slice);
  tile.slice.sync();
  return {nullptr, activation.out};
}

void LinearStep::multiply(LinearArgs args, const Prepared& input, const Area& area,
                          Slice slice) const {
  if (is_integer()) return integer_linear_kernel()({args, input.blocks}, slice);
  args.x = input.x;
  const int64_t sums_per_slice = area.capacity * kMaxFloatPanels * kPanelChannels;
  float_linear_kernel()({args, area.sums, sums_per_slice}, slice);
}

void LinearStep::choose_best(const StepFrame& frame, const Prepared& input,
                             const Tile& tile) const {
  const int64_t rows = tile.num_rows();
  const auto best_of = [&](int thread) {
    return frame.memory.best_tokens(thread) + tile.rows.begin;
  };
  BestToken* const best = best_of(tile.slice.index);
  const Range panels = tile.slice.share(args_.layout.num_panels());
  for (int64_t row = 0; row < rows; ++row) {
    best[row] = {-std::numeric_limits<float>::infinity(), 0};
  }
  for_each_part(panels, input, tile, [&](const LinearArgs& part, int64_t column, int64_t row) {
    update_argmax_kernel()(
        {part.out, part.rows, part.layout.out_features, static_cast<int32_t>(column), best + row},
        kAlone);
  });
  tile.slice.sync();
  const Range share = tile.slice.share(rows);
  for (int64_t row = share.begin; row < share.end; ++row) {
    BestToken chosen = best_of(0)[row];
    for (int thread = 1; thread < tile.slice.count; ++thread) {
      const BestToken& other = best_of(thread)[row];
      if (other.logit > chosen.logit) chosen = other;
    }
    frame.inputs.best_tokens[tile.rows.begin + row] = chosen.token;
  }
  tile.slice.sync();
}

void LinearStep::publish(const StepFrame& frame, const Prepared& input, const Tile& tile) const {
  const int64_t vocab = args_.layout.out_features, blocks = num_token_blocks(vocab);
  float* const out = frame.inputs.out + tile.rows.begin * vocab;
  float* const maxima = frame.inputs.block_maxima + tile.rows.begin * blocks;
  const Range panels = tile.slice.share(args_.layout.num_panels(), kBlockTokens / kPanelChannels);
  for_each_part(panels, input, tile, [&](const LinearArgs& part, int64_t column, int64_t row) {
    publish_logits_kernel()(
        {part.out, part.rows, part.layout.out_features, out + row * vocab + column, vocab,
         maxima + row * blocks + column / kBlockTokens, blocks},
        kAlone);
  });
  tile.slice.sync();
}

template <class Use>
void LinearStep::for_each_part(Range panels, const Prepared& input, const Tile& tile,
                               Use use) const {
  static_assert(kLogitChunk % kBlockTokens == 0);
  constexpr int64_t kChunkPanels = kLogitChunk / kPanelChannels;
  const PackedLayout& layout = args_.layout;
  for (int64_t row = 0; row < tile.num_rows(); row += kMaxTileRows) {
    Prepared own_rows{};
    if (is_integer()) {
      own_rows.blocks = input.blocks + num_quantized_blocks(row, layout.in_features);
    } else {
      own_rows.x = input.x + row * layout.in_features;
    }
    LinearArgs part = args_;
    part.rows = std::min(kMaxTileRows, tile.num_rows() - row);
    part.out = tile.own.logits;
    for (int64_t panel = panels.begin; panel < panels.end; panel += kChunkPanels) {
      const int64_t column = panel * kPanelChannels;
      const int64_t end = std::min(panel + kChunkPanels, panels.end) * kPanelChannels;
      part.layout.out_features = std::min(end, layout.out_features) - column;
      part.weight = args_.weight + panel * layout.panel_bytes();
      part.bias = args_.bias == nullptr ? nullptr : args_.bias + column;
      multiply(part, own_rows, tile.own, kAlone);
      use(part, column, row);
    }
  }
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

void HiddenStep::run(const StepFrame& frame, const Tile& tile) const {
  float* out = frame.address(out_, tile);
  const float* source = frame.inputs.hidden + tile.rows.begin * width_;
  const Range rows = tile.slice.share(tile.num_rows());
  const size_t num_bytes = static_cast<size_t>((rows.end - rows.begin) * width_) * sizeof(float);
  std::memcpy(out + rows.begin * width_, source + rows.begin * width_, num_bytes);
  tile.slice.sync();
}

void TapStep::run(const StepFrame& frame, const Tile& tile) const {
  const float* source = frame.address(input_, tile);
  const int64_t* slots = frame.inputs.slots + tile.rows.begin;
  const Range rows = tile.slice.share(tile.num_rows());
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    uint16_t* target = cache_.data + slots[row] * cache_.width;
    for (int64_t i = 0; i < cache_.width; ++i) {
      target[i] = round_to_bf16(source[row * cache_.width + i]);
    }
  }
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
  if (frame.inputs.hidden_out != nullptr) {
    float* kept = frame.inputs.hidden_out + (tile.rows.begin + rows.begin) * input.width;
    std::memcpy(kept, out + rows.begin * input.width,
                static_cast<size_t>(rows.end - rows.begin) * num_bytes);
  }
  tile.slice.sync();
}

}  // namespace fdspec
