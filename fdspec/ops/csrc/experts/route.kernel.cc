// SPDX-License-Identifier: Apache-2.0
#include "experts/route.h"

#include <limits>

#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The next vector of a row; past its end it holds -infinity, whose probability is 0.
FDSPEC_INLINE F16 load_logits(const float* logits, int64_t i, int64_t num_experts) {
  const int count = static_cast<int>(min_of<int64_t>(kLanes, num_experts - i));
  return select(M16::first(count), F16::load_partial(logits + i, count), splat(-kInfinity));
}

// probabilities: [num_experts, rounded up to whole vectors]
FDSPEC_INLINE void softmax(const float* logits, int64_t num_experts, float* probabilities) {
  F16 largest = splat(-kInfinity);
  for (int64_t i = 0; i < num_experts; i += kLanes) {
    largest = max(load_logits(logits, i, num_experts), largest);
  }
  const F16 shift = splat(largest.reduce_max());
  F16 sum = F16::zero();
  for (int64_t i = 0; i < num_experts; i += kLanes) {
    const F16 weight = exp(load_logits(logits, i, num_experts) - shift);
    weight.store(probabilities + i);
    sum = sum + weight;
  }
  const F16 total = splat(sum.reduce_add());
  for (int64_t i = 0; i < num_experts; i += kLanes) {
    (F16::load(probabilities + i) / total).store(probabilities + i);
  }
}

// The expert with the largest score among those not taken; the first of equal ones.
FDSPEC_INLINE int32_t best_of(const float* scores, const bool* is_taken, int64_t num_experts) {
  int32_t best = -1;
  for (int32_t i = 0; i < num_experts; ++i) {
    if (!is_taken[i] && (best < 0 || scores[i] > scores[best])) best = i;
  }
  return best;
}

FDSPEC_INLINE void route_row(const RouteArgs& args, int64_t row) {
  const Routing& routing = args.routing;
  alignas(64) float probabilities[kMaxExperts];
  float scores[kMaxExperts];
  bool is_taken[kMaxExperts] = {};
  softmax(args.logits + row * args.num_experts, args.num_experts, probabilities);
  for (int64_t i = 0; i < args.num_experts; ++i) {
    scores[i] = routing.bias == nullptr ? probabilities[i] : probabilities[i] + routing.bias[i];
  }
  int32_t* experts = args.experts + row * routing.num_chosen;
  float* factors = args.factors + row * routing.num_chosen;
  float sum = 0.0f;
  for (int64_t i = 0; i < routing.num_chosen; ++i) {
    experts[i] = best_of(scores, is_taken, args.num_experts);
    is_taken[experts[i]] = true;
    factors[i] = probabilities[experts[i]];
    sum += factors[i];
  }
  if (!routing.is_normalized) return;
  const float divisor = max_of(sum, routing.smallest_sum);
  for (int64_t i = 0; i < routing.num_chosen; ++i) factors[i] /= divisor;
}

}  // namespace

void route_experts(const RouteArgs& args, Slice slice) {
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) route_row(args, row);
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
