// SPDX-License-Identifier: Apache-2.0
#include "experts/arguments.h"

#include "linear/arguments.h"

namespace fdspec {
namespace {

void expect_choices(const int32_t* experts, int64_t rows, int64_t num_chosen, int64_t num_experts) {
  for (int64_t i = 0; i < rows * num_chosen; ++i) {
    const std::string place = " at row " + std::to_string(i / num_chosen);
    if (experts[i] < 0 || experts[i] >= num_experts) {
      throw ArgumentError("experts: " + std::to_string(experts[i]) + place + " is outside 0 .. " +
                          std::to_string(num_experts - 1));
    }
    for (int64_t j = i / num_chosen * num_chosen; j < i; ++j) {
      if (experts[j] != experts[i]) continue;
      throw ArgumentError("experts: " + std::to_string(experts[i]) + " stands twice" + place);
    }
  }
}

// The layout of one of `count` matrices.
PackedLayout one_of(const char* name, const PackedLayout& stacked, int64_t count) {
  PackedLayout layout = stacked;
  layout.out_features = stacked.out_features / count;
  if (layout.out_features * count == stacked.out_features &&
      layout.out_features % kPanelChannels == 0) {
    return layout;
  }
  throw ArgumentError(std::string(name) + ": has " + std::to_string(stacked.out_features) +
                      " outputs, which is no multiple of " + std::to_string(kPanelChannels) +
                      " for each of " + std::to_string(count) + " experts");
}

}  // namespace

Routing routing_of(const ArrayView* bias, int64_t num_experts, int64_t num_chosen,
                   bool is_normalized, float smallest_sum) {
  if (num_experts < 1 || num_experts > kMaxExperts) {
    throw ArgumentError("logits: expected 1 .. " + std::to_string(kMaxExperts) + " experts, got " +
                        std::to_string(num_experts));
  }
  if (num_chosen < 1 || num_chosen > num_experts) {
    throw ArgumentError("num_chosen: must be in 1 .. " + std::to_string(num_experts) + ", got " +
                        std::to_string(num_chosen));
  }
  return {optional_input<float>(bias, {num_experts}), num_chosen, is_normalized, smallest_sum};
}

RouteArgs route_args(const ArrayView& logits, const ArrayView* bias, int64_t num_chosen,
                     bool is_normalized, float smallest_sum) {
  RouteArgs args{};
  args.logits = input<float>(logits, {kAnySize, kAnySize});
  args.rows = logits.size(0);
  args.num_experts = logits.size(1);
  args.routing = routing_of(bias, args.num_experts, num_chosen, is_normalized, smallest_sum);
  return args;
}

ExpertWeights expert_weights(const StackedMatrix& gate_up, const StackedMatrix& down) {
  const int64_t ffn = down.layout.in_features, hidden = gate_up.layout.in_features;
  if (hidden < 1 || ffn < 1 || down.layout.out_features < hidden) {
    throw ArgumentError("down: expected a matrix of " + std::to_string(hidden) +
                        " outputs for each expert, got " +
                        std::to_string(down.layout.out_features));
  }
  const int64_t num_experts = down.layout.out_features / hidden;
  ExpertWeights weights{};
  weights.num_experts = num_experts;
  weights.down = {one_of("down", down.layout, num_experts), down.float_activations,
                  packed_data(down.data, down.layout)};
  weights.gate_up = {one_of("gate_up", gate_up.layout, num_experts), gate_up.float_activations,
                     packed_data(gate_up.data, gate_up.layout)};
  if (weights.down.layout.out_features != hidden ||
      weights.gate_up.layout.out_features != 2 * ffn) {
    throw ArgumentError("gate_up: has " + std::to_string(gate_up.layout.out_features) +
                        " outputs, expected gate and up of " + std::to_string(ffn) +
                        " for each of " + std::to_string(num_experts) + " experts");
  }
  return weights;
}

ExpertsArgs experts_args(const ArrayView& x, const ArrayView& experts, const ArrayView& factors,
                         const StackedMatrix& gate_up, const StackedMatrix& down,
                         const ArrayView* residual) {
  ExpertsArgs args{};
  args.weights = expert_weights(gate_up, down);
  args.activation = Activation::kPlain;
  args.x = input<float>(x, {kAnySize, args.weights.hidden()});
  args.rows = x.size(0);
  args.experts = input<int32_t>(experts, {args.rows, kAnySize});
  args.num_chosen = experts.size(1);
  args.factors = input<float>(factors, {args.rows, args.num_chosen});
  args.residual = optional_input<float>(residual, {args.rows, args.weights.hidden()});
  expect_choices(args.experts, args.rows, args.num_chosen, args.weights.num_experts);
  return args;
}

}  // namespace fdspec
