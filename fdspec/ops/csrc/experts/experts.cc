// SPDX-License-Identifier: Apache-2.0
#include "experts/experts.h"

#include <algorithm>

#include "common/workspace.h"
#include "experts/add_experts.h"
#include "experts/route.h"

namespace fdspec {
namespace {

// Products of weight bytes and rows that are worth a thread.
constexpr int64_t kMinWorkPerSlice = 65536;
constexpr int64_t kMinLogitsPerSlice = 2048;

int64_t whole_lines(int64_t num_bytes) { return ceil_div(num_bytes, 64) * 64; }
int64_t float_bytes(int64_t count) {
  return whole_lines(count * static_cast<int64_t>(sizeof(float)));
}

int64_t widest_input(const ExpertWeights& weights) {
  return std::max(weights.hidden(), weights.ffn());
}

// Parts of the workspace.
struct Workspace {
  int64_t prepared_bytes;  // inputs of a product: blocks, or floats
  int64_t results_bytes;
  int64_t sums_per_slice;
  int64_t scratch_stride;
  char* prepared = nullptr;
  float* results = nullptr;
  float* sums = nullptr;
  float* scratch = nullptr;

  Workspace(const ExpertWeights& weights, int64_t rows, int64_t num_chosen) {
    const int64_t places = max_expert_places(rows, num_chosen, weights.num_experts);
    const int64_t width = widest_input(weights);
    const int64_t block_bytes =
        num_quantized_blocks(places, width) * static_cast<int64_t>(sizeof(QuantizedBlock));
    prepared_bytes = whole_lines(std::max(block_bytes, float_bytes(places * width)));
    results_bytes = float_bytes(places * std::max(2 * weights.ffn(), weights.hidden()));
    sums_per_slice = rows * kMaxFloatPanels * kPanelChannels;
    scratch_stride = ceil_div(width, 16) * 16;
  }

  int64_t total_bytes(int num_slices) const {
    return prepared_bytes + results_bytes +
           num_slices * (float_bytes(sums_per_slice) + float_bytes(scratch_stride));
  }

  void place(void* memory, int num_slices) {
    prepared = static_cast<char*>(memory);
    results = reinterpret_cast<float*>(prepared + prepared_bytes);
    sums = reinterpret_cast<float*>(prepared + prepared_bytes + results_bytes);
    scratch = sums + num_slices * sums_per_slice;
  }
};

// Writes the inputs of a projection to their places: rows `sources` of x after the activation.
void prepare(const ExpertMatrices& matrices, Activation activation, const float* x,
             const ExpertsArgs& args, const int32_t* sources, int64_t num_places,
             const Workspace& workspace, Slice slice) {
  const PackedLayout& layout = matrices.layout;
  const int64_t dim = layout.in_features;
  ActivationArgs activations{};
  activations.activation = activation;
  activations.x = x;
  activations.weight = args.norm_weight;
  activations.epsilon = args.epsilon;
  activations.rows = num_places;
  activations.dim = dim;
  activations.sources = sources;
  activations.out = nullptr;
  activations.quantize = {
      nullptr, nullptr, num_places, dim, layout.group_blocks(), layout.zero_point()};
  activations.scratch = workspace.scratch;
  activations.scratch_stride = workspace.scratch_stride;
  if (matrices.is_integer()) {
    activations.quantize.out = reinterpret_cast<QuantizedBlock*>(workspace.prepared);
  } else {
    activations.out = reinterpret_cast<float*>(workspace.prepared);
  }
  prepare_activations_kernel()(activations, slice);
  slice.sync();
}

// The products of all experts with the inputs at their places.
void multiply(const ExpertMatrices& matrices, int64_t num_experts, const ExpertPlaces& places,
              const Workspace& workspace, Slice slice) {
  const PackedLayout& layout = matrices.layout;
  LinearArgs args{};
  args.layout = layout;
  args.float_activations = matrices.float_activations;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const int64_t place = places.begin(expert);
    args.rows = places.count(expert);
    if (args.rows == 0) continue;
    args.weight = matrices.data + expert * layout.total_bytes();
    args.out = workspace.results + place * layout.out_features;
    if (matrices.is_integer()) {
      const auto* blocks = reinterpret_cast<const QuantizedBlock*>(workspace.prepared);
      integer_linear_kernel()({args, blocks + num_quantized_blocks(place, layout.in_features)},
                              slice);
    } else {
      args.x = reinterpret_cast<const float*>(workspace.prepared) + place * layout.in_features;
      float_linear_kernel()({args, workspace.sums, workspace.sums_per_slice}, slice);
    }
  }
  slice.sync();
}

// Up to kMaxExpertRows rows.
void run_some(const ExpertsArgs& args, ExpertPlaces* places, const Workspace& workspace,
              Slice slice) {
  const ExpertWeights& weights = args.weights;
  if (slice.index == 0) {
    places->assign(args.experts, args.rows, args.num_chosen, weights.num_experts);
  }
  slice.sync();
  const int64_t num_places = places->num_places();
  prepare(weights.gate_up, args.activation, args.x, args, places->rows(), num_places, workspace,
          slice);
  multiply(weights.gate_up, weights.num_experts, *places, workspace, slice);
  prepare(weights.down, Activation::kGated, workspace.results, args, places->numbers(), num_places,
          workspace, slice);
  multiply(weights.down, weights.num_experts, *places, workspace, slice);
  add_experts_kernel()({workspace.results, places->of_choices(), args.factors, args.residual,
                        args.out, args.rows, args.num_chosen, weights.hidden()},
                       slice);
  slice.sync();
}

}  // namespace

void ExpertPlaces::reserve(int64_t rows, int64_t num_chosen, int64_t num_experts) {
  rows = std::min(rows, kMaxExpertRows);
  const size_t num_places = static_cast<size_t>(max_expert_places(rows, num_chosen, num_experts));
  const size_t num_choices = static_cast<size_t>(rows * num_chosen);
  if (num_choices > of_choices_.size()) of_choices_.resize(num_choices);
  if (num_places > rows_.size()) {
    rows_.resize(num_places);
    numbers_.resize(num_places);
  }
  if (static_cast<size_t>(num_experts) > begins_.size()) {
    begins_.resize(static_cast<size_t>(num_experts));
    counts_.resize(static_cast<size_t>(num_experts));
  }
}

void ExpertPlaces::assign(const int32_t* experts, int64_t rows, int64_t num_chosen,
                          int64_t num_experts) {
  std::fill_n(counts_.begin(), num_experts, 0);
  for (int64_t i = 0; i < rows * num_chosen; ++i) ++counts_[static_cast<size_t>(experts[i])];
  int64_t next = 0;
  for (size_t expert = 0; expert < static_cast<size_t>(num_experts); ++expert) {
    begins_[expert] = next;
    next += ceil_div(counts_[expert], kTileRows) * kTileRows;
    counts_[expert] = 0;
  }
  num_places_ = next;
  std::fill_n(rows_.begin(), next, -1);
  std::fill_n(numbers_.begin(), next, -1);
  for (int64_t i = 0; i < rows * num_chosen; ++i) {
    const size_t expert = static_cast<size_t>(experts[i]);
    const int64_t place = begins_[expert] + counts_[expert]++;
    of_choices_[static_cast<size_t>(i)] = static_cast<int32_t>(place);
    rows_[static_cast<size_t>(place)] = static_cast<int32_t>(i / num_chosen);
    numbers_[static_cast<size_t>(place)] = static_cast<int32_t>(place);
  }
}

int64_t max_expert_places(int64_t rows, int64_t num_chosen, int64_t num_experts) {
  const int64_t choices = rows * num_chosen;
  return choices + (kTileRows - 1) * std::min(choices, num_experts);
}

int64_t experts_workspace_bytes(const ExpertWeights& weights, int64_t rows, int64_t num_chosen,
                                int num_slices) {
  return Workspace(weights, std::min(rows, kMaxExpertRows), num_chosen).total_bytes(num_slices);
}

void run_experts(const ExpertsArgs& args, ExpertPlaces* places, void* memory, Slice slice) {
  const int64_t hidden = args.weights.hidden();
  Workspace workspace(args.weights, std::min(args.rows, kMaxExpertRows), args.num_chosen);
  workspace.place(memory, slice.count);
  for (int64_t row = 0; row < args.rows; row += kMaxExpertRows) {
    ExpertsArgs part = args;
    part.rows = std::min(kMaxExpertRows, args.rows - row);
    part.x += row * hidden;
    part.experts += row * args.num_chosen;
    part.factors += row * args.num_chosen;
    if (args.residual != nullptr) part.residual += row * hidden;
    part.out += row * hidden;
    run_some(part, places, workspace, slice);
  }
}

void run_all_experts(const ExpertsArgs& args) {
  const ExpertWeights& weights = args.weights;
  const int64_t expert_bytes =
      weights.gate_up.layout.total_bytes() + weights.down.layout.total_bytes();
  const int num_slices = slices_for(args.rows * args.num_chosen * expert_bytes, kMinWorkPerSlice);
  void* workspace =
      thread_workspace(experts_workspace_bytes(weights, args.rows, args.num_chosen, num_slices));
  ExpertPlaces places;
  places.reserve(args.rows, args.num_chosen, weights.num_experts);
  parallel(num_slices, [&](Slice slice) { run_experts(args, &places, workspace, slice); });
}

void run_route_experts(const RouteArgs& args) {
  launch(route_experts_kernel(), args,
         slices_for(args.rows * args.num_experts, kMinLogitsPerSlice));
}

}  // namespace fdspec
