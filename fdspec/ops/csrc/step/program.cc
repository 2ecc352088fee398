// SPDX-License-Identifier: Apache-2.0
#include "step/program.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/array_view.h"

namespace fdspec {
namespace {

void expect_width(const char* name, int64_t width, int64_t wanted) {
  if (width == wanted) return;
  throw ArgumentError(std::string(name) + ": has " + std::to_string(width) +
                      " columns, the layer takes " + std::to_string(wanted));
}

void expect_stored(const char* name, const ValueInfo& value) {
  if (value.activation == Activation::kPlain) return;
  throw ArgumentError(std::string(name) +
                      ": the result of rms_norm and swiglu can only be the x "
                      "of linear");
}

}  // namespace

StepProgram::StepProgram() { segments_.emplace_back(); }
StepProgram::~StepProgram() = default;

const PagedCache* StepProgram::cache() const {
  const AttentionStep* first = segments_.front().attention.get();
  return first == nullptr ? nullptr : &first->cache;
}

int StepProgram::segment_index() const { return static_cast<int>(segments_.size()) - 1; }

void StepProgram::read(Value value) { values_.use(value, segment_index(), time_); }

Value StepProgram::store(int64_t width) {
  ValueInfo info;
  info.width = width;
  info.segment = segment_index();
  info.written_at = info.read_at = time_++;
  last_ = values_.add(info);
  last_linear_ = nullptr;
  return last_;
}

Value StepProgram::embedding(const PackedMatrix& weight) {
  vocab_size_ = weight.layout.out_features;
  const Value out = store(weight.layout.in_features);
  segments_.back().steps.push_back(
      std::make_unique<EmbeddingStep>(weight.layout, weight.data, out));
  return out;
}

Value StepProgram::hidden(int64_t width) {
  if (hidden_width_ != 0) throw ArgumentError("width: the program takes hidden states already");
  if (width <= 0) throw ArgumentError("width: must be positive");
  hidden_width_ = width;
  const Value out = store(width);
  segments_.back().steps.push_back(std::make_unique<HiddenStep>(width, out));
  return out;
}

void StepProgram::tap(Value x, const TapCache& cache) {
  const ValueInfo& input = values_.info(x, "x");
  expect_stored("x", input);
  expect_width("x", input.width, cache.width);
  if (segments_.back().of_selected) throw ArgumentError("x: only all rows have slots");
  read(x);
  min_tap_slots_ = std::min(min_tap_slots_, cache.num_slots);
  segments_.back().steps.push_back(std::make_unique<TapStep>(cache, x));
}

Value StepProgram::rms_norm(Value x, const float* weight, float epsilon) {
  const ValueInfo& source = values_.info(x, "x");
  expect_stored("x", source);
  ValueInfo info;
  info.width = source.width;
  info.activation = Activation::kNormalized;
  info.source = x;
  info.norm_weight = weight;
  info.epsilon = epsilon;
  return values_.add(info);
}

Value StepProgram::swiglu(Value x) {
  const ValueInfo& source = values_.info(x, "x");
  expect_stored("x", source);
  expect_width("x", source.width, source.width / 2 * 2);
  ValueInfo info;
  info.width = source.width / 2;
  info.activation = Activation::kGated;
  info.source = x;
  return values_.add(info);
}

Value StepProgram::linear(Value x, const PackedMatrix& weight, bool float_activations,
                          const float* bias, Value residual) {
  const ValueInfo& input = values_.info(x, "x");
  expect_width("x", input.width, weight.layout.in_features);
  read(input.activation == Activation::kPlain ? x : input.source);
  if (residual != kNoValue) {
    const ValueInfo& added = values_.info(residual, "residual");
    expect_stored("residual", added);
    expect_width("residual", added.width, weight.layout.out_features);
    read(residual);
  }
  LinearArgs args{};
  args.layout = weight.layout;
  args.float_activations = float_activations;
  args.weight = weight.data;
  args.bias = bias;
  memory_.note_input_width(weight.layout.in_features);
  const Value out = store(weight.layout.out_features);
  auto step = std::make_unique<LinearStep>(args, x, residual, out);
  last_linear_ = step.get();
  segments_.back().steps.push_back(std::move(step));
  return out;
}

Value StepProgram::attention(Value qkv, const AttentionLayer& layer) {
  const AttentionShape& shape = layer.shape;
  const ValueInfo& input = values_.info(qkv, "qkv");
  expect_stored("qkv", input);
  expect_width("qkv", input.width,
               (shape.num_heads + 2 * shape.num_kv_heads) * int64_t{shape.head_dim});
  if (segments_.back().of_selected) throw ArgumentError("qkv: attention needs all rows");
  const bool is_first = segments_.size() == 1;
  if (!is_first && (shape.num_heads != shape_.num_heads || shape.head_dim != shape_.head_dim ||
                    shape.num_kv_heads != shape_.num_kv_heads)) {
    throw ArgumentError("qkv: all attentions of a program must have the same heads");
  }
  shape_ = shape;
  max_positions_ = is_first ? layer.max_positions : std::min(max_positions_, layer.max_positions);
  RotateAppendArgs args{};
  args.shape = shape;
  args.query_norm = layer.query_norm;
  args.key_norm = layer.key_norm;
  args.cos = layer.cos;
  args.sin = layer.sin;
  args.cache = layer.cache;
  read(qkv);
  const int64_t width = int64_t{shape.num_heads} * shape.head_dim;
  const Value query = store(width);
  Segment& segment = segments_.back();
  segment.steps.push_back(std::make_unique<RotateAppendStep>(args, qkv, query));
  segments_.emplace_back();
  // Attention reads other rows than its own and writes for the next segment.
  read(query);
  const Value out = store(width);
  values_.set_global(out);
  segments_[segments_.size() - 2].attention.reset(
      new AttentionStep{++num_attentions_, query, out, layer.cache, layer.scale});
  return out;
}

Value StepProgram::experts(Value x, Value logits, const ExpertWeights& weights,
                           const Routing& routing, Value residual) {
  const ValueInfo input = values_.info(x, "x");
  const ValueInfo& scores = values_.info(logits, "logits");
  if (input.activation == Activation::kGated) {
    throw ArgumentError("x: the result of swiglu can only be the x of linear");
  }
  expect_width("x", input.width, weights.hidden());
  expect_stored("logits", scores);
  expect_width("logits", scores.width, weights.num_experts);
  if (residual != kNoValue) {
    const ValueInfo& added = values_.info(residual, "residual");
    expect_stored("residual", added);
    expect_width("residual", added.width, weights.hidden());
  }
  if (segments_.back().of_selected) throw ArgumentError("x: experts need all rows");
  segments_.emplace_back();
  // Rows of all tiles meet in an expert, so all that it reads must outlive its segment.
  read(input.activation == Activation::kPlain ? x : input.source);
  read(logits);
  if (residual != kNoValue) read(residual);
  const Value out = store(weights.hidden());
  values_.set_global(out);
  segments_[segments_.size() - 2].experts.reset(
      new ExpertsStep{weights, routing, x, logits, residual, out});
  return out;
}

Value StepProgram::select(Value x) {
  const ValueInfo& input = values_.info(x, "x");
  expect_stored("x", input);
  const int64_t width = input.width;
  selected_width_ = width;
  segments_.emplace_back();
  segments_.back().of_selected = true;
  read(x);
  const Value out = store(width);
  segments_.back().steps.push_back(std::make_unique<SelectStep>(x, out));
  return out;
}

void StepProgram::finish() {
  if (last_linear_ == nullptr || last_linear_->has_residual() || !segments_.back().of_selected) {
    throw ArgumentError(
        "program: must end with a linear layer over selected rows, without a residual");
  }
  if (segments_.front().attention == nullptr) {
    throw ArgumentError("program: needs at least one attention");
  }
  if (min_tap_slots_ < cache()->num_slots()) {
    throw ArgumentError("cache: the one of a tap has fewer slots than that of the keys");
  }
  last_linear_->set_is_last(true);
  values_.set_result(last_);
  values_.place();
  next_tiles_ = std::make_unique<std::atomic<int64_t>[]>(segments_.size());
  is_finished_ = true;
}

void StepProgram::run(const StepInputs& inputs) {
  const int num_threads = fdspec::num_threads();
  // Parts of keys that do not begin with a block are not shared.
  const AttentionBlocks blocks{inputs.block_table, inputs.max_blocks, cache()->block_size};
  const AttentionPlan plan = first_slot_ == 0 ? AttentionPlan(inputs.rows, shape_, blocks)
                                              : AttentionPlan(inputs.rows, shape_);
  memory_.reserve(values_, inputs.rows.num_rows, inputs.num_selected, num_threads);
  void* workspace =
      attention_workspace_.reserve(attention_workspace_bytes(plan, shape_, num_threads));
  for (size_t i = 0; i < segments_.size(); ++i) {
    next_tiles_[i].store(0, std::memory_order_relaxed);
  }
  num_appended_.store(0, std::memory_order_relaxed);
  reserve_experts(inputs.rows.num_rows, num_threads);
  const StepFrame frame{inputs, values_, memory_, plan, static_cast<float*>(workspace)};
  parallel(num_threads, [&](Slice slice) {
    for (size_t i = 0; i < segments_.size(); ++i) {
      run_rows(i, frame, slice);
      if (segments_[i].attention != nullptr) attend(i, frame, slice);
      if (segments_[i].experts != nullptr) mix_experts(*segments_[i].experts, frame, slice);
    }
  });
}

void StepProgram::run_rows(size_t index, const StepFrame& frame, Slice slice) {
  const Segment& segment = segments_[index];
  const int64_t rows = segment.of_selected ? frame.inputs.num_selected : frame.inputs.rows.num_rows;
  if (rows == 0) return;
  const Area own = memory_.thread_area(slice.index);
  if (slice.count > 1 && rows < kMinTileRows * slice.count) {
    const Tile tile{{0, rows}, slice, memory_.shared_area(), own};
    for (const auto& step : segment.steps) step->run(frame, tile);
    return;
  }
  const int64_t share = ceil_div(ceil_div(rows, slice.count), kTileRows) * kTileRows;
  const int64_t tile_rows = std::clamp(share, int64_t{kTileRows}, kMaxTileRows);
  for (;;) {
    const int64_t begin = next_tiles_[index].fetch_add(tile_rows, std::memory_order_relaxed);
    if (begin >= rows) break;
    const Tile tile{{begin, std::min(begin + tile_rows, rows)}, {0, 1, nullptr}, own, own};
    for (const auto& step : segment.steps) step->run(frame, tile);
  }
  slice.sync();
}

void StepProgram::attend(size_t index, const StepFrame& frame, Slice slice) {
  const AttentionStep& step = *segments_[index].attention;
  if (slice.index == 0) num_appended_.store(step.number, std::memory_order_release);
  AttentionArgs args{};
  args.query = memory_.global_address(values_[step.query]);
  args.cache = step.cache;
  args.block_table = frame.inputs.block_table;
  args.max_blocks = frame.inputs.max_blocks;
  args.rows = frame.inputs.rows;
  args.shape = shape_;
  args.first_slot = first_slot_;
  args.scale = step.scale;
  args.out = memory_.global_address(values_[step.out]);
  args.plan = &frame.attention_plan;
  args.workspace = frame.attention_workspace;
  // A small attention is quicker on one thread than shared.
  if (frame.attention_plan.num_slices() > 1) {
    cascade_append_attention_kernel()(args, slice);
  } else if (slice.index == 0) {
    cascade_append_attention_kernel()(args, {0, 1, nullptr});
  }
  slice.sync();
}

void StepProgram::reserve_experts(int64_t rows, int num_threads) {
  for (const Segment& segment : segments_) {
    if (segment.experts == nullptr) continue;
    const ExpertWeights& weights = segment.experts->weights;
    const int64_t num_chosen = segment.experts->routing.num_chosen;
    chosen_experts_.reserve(rows * num_chosen * static_cast<int64_t>(sizeof(int32_t)));
    expert_factors_.reserve(rows * num_chosen * static_cast<int64_t>(sizeof(float)));
    expert_places_.reserve(rows, num_chosen, weights.num_experts);
    experts_workspace_.reserve(experts_workspace_bytes(weights, rows, num_chosen, num_threads));
  }
}

void StepProgram::mix_experts(const ExpertsStep& step, const StepFrame& frame, Slice slice) {
  const auto address = [&](Value value) { return memory_.global_address(values_[value]); };
  const int64_t rows = frame.inputs.rows.num_rows;
  auto* experts = static_cast<int32_t*>(chosen_experts_.reserve(0));
  auto* factors = static_cast<float*>(expert_factors_.reserve(0));
  route_experts_kernel()(
      {address(step.logits), step.routing, rows, step.weights.num_experts, experts, factors},
      slice);
  slice.sync();
  const ValueInfo& x = values_[step.x];
  ExpertsArgs args{};
  args.weights = step.weights;
  args.activation = x.activation;
  args.x = address(x.activation == Activation::kPlain ? step.x : x.source);
  args.norm_weight = x.norm_weight;
  args.epsilon = x.epsilon;
  args.experts = experts;
  args.factors = factors;
  args.num_chosen = step.routing.num_chosen;
  args.residual = step.residual == kNoValue ? nullptr : address(step.residual);
  args.out = address(step.out);
  args.rows = rows;
  run_experts(args, &expert_places_, experts_workspace_.reserve(0), slice);
}

}  // namespace fdspec
