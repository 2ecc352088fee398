// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of the ops on packed weights and fills in all but the outputs.
#pragma once

#include "common/array_view.h"
#include "linear/linear.h"

namespace fdspec {

// The bytes of a matrix of that layout.
FDSPEC_EXPORT const uint8_t* packed_data(const ArrayView& data, const PackedLayout& layout);

// `bias` and `residual` may be null.
FDSPEC_EXPORT LinearArgs linear_args(const ArrayView& x, const ArrayView& data,
                                     const PackedLayout& layout, bool float_activations,
                                     const ArrayView* bias, const ArrayView* residual);

FDSPEC_EXPORT EmbeddingArgs embedding_args(const ArrayView& token_ids, const ArrayView& data,
                                           const PackedLayout& layout);

// Throws if there is no such format (fdspec/ops/weights.py has the rules).
FDSPEC_EXPORT PackedLayout packed_layout(int64_t bits, int64_t group_size, bool has_minimum,
                                         int64_t in_features, int64_t out_features);

}  // namespace fdspec
