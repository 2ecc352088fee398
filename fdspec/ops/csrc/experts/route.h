// SPDX-License-Identifier: Apache-2.0
// Which experts a row goes to, and with which factors. A row's result depends on its logits and
// the bias alone.
//
// probability = softmax(logits): e^(logit - largest), and their sum over lanes (lane l adds experts
// l, l + 16, ... in order) and then by a tree. The experts with the largest probability + bias are
// chosen, the lowest number first among equal ones, and stand in that order. The factor is the
// probability, divided by max(sum of the chosen, smallest_sum) if it is to be normalised.
#pragma once

#include "common/dispatch.h"

namespace fdspec {

inline constexpr int64_t kMaxExperts = 512;

// How a layer chooses.
struct Routing {
  const float* bias;   // [num_experts] or null
  int64_t num_chosen;  // 1 .. num_experts
  bool is_normalized;
  float smallest_sum;
};

struct RouteArgs {
  const float* logits;  // [rows, num_experts]
  Routing routing;
  int64_t rows;
  int64_t num_experts;  // up to kMaxExperts
  int32_t* experts;     // [rows, num_chosen]
  float* factors;       // [rows, num_chosen]
};

// Slices split the rows.
FDSPEC_DECLARE_KERNEL(route_experts, RouteArgs)

FDSPEC_EXPORT void run_route_experts(const RouteArgs& args);

}  // namespace fdspec
