// SPDX-License-Identifier: Apache-2.0
#include "linear/arguments.h"

namespace fdspec {

const uint8_t* packed_data(const ArrayView& data, const PackedLayout& layout) {
  return input<uint8_t>(data, {layout.total_bytes()});
}

LinearArgs linear_args(const ArrayView& x, const ArrayView& data, const PackedLayout& layout,
                       bool float_activations, const ArrayView* bias, const ArrayView* residual) {
  LinearArgs args;
  args.layout = layout;
  args.float_activations = float_activations;
  args.weight = packed_data(data, layout);
  args.x = input<float>(x, {kAnySize, layout.in_features});
  args.rows = x.size(0);
  args.bias = optional_input<float>(bias, {layout.out_features});
  args.residual = optional_input<float>(residual, {args.rows, layout.out_features});
  args.out = nullptr;
  return args;
}

EmbeddingArgs embedding_args(const ArrayView& token_ids, const ArrayView& data,
                             const PackedLayout& layout) {
  const int32_t* ids = input<int32_t>(token_ids, {kAnySize});
  const int64_t rows = token_ids.size(0);
  for (int64_t row = 0; row < rows; ++row) {
    if (ids[row] >= 0 && ids[row] < layout.out_features) continue;
    throw ArgumentError("token_ids: " + std::to_string(ids[row]) + " at row " +
                        std::to_string(row) + " is outside the vocabulary, 0 .. " +
                        std::to_string(layout.out_features - 1));
  }
  return {layout, packed_data(data, layout), ids, rows, nullptr};
}

PackedLayout packed_layout(int64_t bits, int64_t group_size, bool has_minimum, int64_t in_features,
                           int64_t out_features) {
  if (bits != 32 && bits != 16 && bits != 8 && bits != 4) {
    throw ArgumentError("bits: must be 32, 16, 8 or 4, got " + std::to_string(bits));
  }
  if (group_size != 0 && group_size != 32 && group_size != 64 && group_size != 128) {
    throw ArgumentError("group_size: must be 0, 32, 64 or 128, got " + std::to_string(group_size));
  }
  if (has_minimum && bits != 4) {
    throw ArgumentError("has_minimum: only 4-bit weights have minima");
  }
  if (in_features < 0 || out_features < 0) {
    throw ArgumentError("in_features, out_features: must not be negative");
  }
  return {static_cast<int>(bits), static_cast<int>(group_size), has_minimum, in_features,
          out_features};
}

}  // namespace fdspec
