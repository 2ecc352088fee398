// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of the ops of a mixture of experts and fills in all but the outputs.
#pragma once

#include "common/array_view.h"
#include "experts/experts.h"
#include "experts/route.h"

namespace fdspec {

// `bias` may be null.
FDSPEC_EXPORT Routing routing_of(const ArrayView* bias, int64_t num_experts, int64_t num_chosen,
                                 bool is_normalized, float smallest_sum);

FDSPEC_EXPORT RouteArgs route_args(const ArrayView& logits, const ArrayView* bias,
                                   int64_t num_chosen, bool is_normalized, float smallest_sum);

// A matrix that holds one projection of all experts, one below the other.
struct StackedMatrix {
  const ArrayView& data;
  PackedLayout layout;
  bool float_activations;
};

FDSPEC_EXPORT ExpertWeights expert_weights(const StackedMatrix& gate_up, const StackedMatrix& down);

// `residual` may be null.
FDSPEC_EXPORT ExpertsArgs experts_args(const ArrayView& x, const ArrayView& experts,
                                       const ArrayView& factors, const StackedMatrix& gate_up,
                                       const StackedMatrix& down, const ArrayView* residual);

}  // namespace fdspec
