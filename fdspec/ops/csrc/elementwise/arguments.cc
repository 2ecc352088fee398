// SPDX-License-Identifier: Apache-2.0
#include "elementwise/arguments.h"

namespace fdspec {
namespace {

void expect_positions(const int32_t* positions, int64_t rows, int64_t max_positions) {
  for (int64_t row = 0; row < rows; ++row) {
    if (positions[row] >= 0 && positions[row] < max_positions) continue;
    throw ArgumentError("positions: " + std::to_string(positions[row]) + " at row " +
                        std::to_string(row) + " is outside the tables, 0 .. " +
                        std::to_string(max_positions - 1));
  }
}

}  // namespace

RmsNormArgs rms_norm_args(const ArrayView& x, const ArrayView& weight, float epsilon) {
  x.expect_ndim(2);
  RmsNormArgs args;
  args.x = x.data<float>();
  args.rows = x.size(0);
  args.dim = x.size(1);
  args.weight = input<float>(weight, {args.dim});
  args.out = nullptr;
  args.epsilon = epsilon;
  return args;
}

RopePair rope_args(const ArrayView& query, const ArrayView& key, const ArrayView& positions,
                   const ArrayView& cos, const ArrayView& sin) {
  query.expect_ndim(3);
  const int64_t rows = query.size(0), dim = query.size(2);
  if (dim % 2 != 0) {
    throw ArgumentError("query: the head size must be even, got " + query.describe());
  }
  RopeArgs args;
  args.x = query.data<float>();
  args.positions = input<int32_t>(positions, {rows});
  args.half = dim / 2;
  args.cos = input<float>(cos, {kAnySize, args.half});
  args.sin = input<float>(sin, {cos.size(0), args.half});
  args.out = nullptr;
  args.rows = rows;
  args.heads = query.size(1);
  expect_positions(args.positions, rows, cos.size(0));
  RopeArgs key_args = args;
  key_args.x = input<float>(key, {rows, kAnySize, dim});
  key_args.heads = key.size(1);
  return {args, key_args};
}

SwigluArgs swiglu_args(const ArrayView& gate_up) {
  gate_up.expect_ndim(2);
  if (gate_up.size(1) % 2 != 0) {
    throw ArgumentError("gate_up: needs an even number of columns, got " + gate_up.describe());
  }
  return {gate_up.data<float>(), nullptr, gate_up.size(0), gate_up.size(1) / 2};
}

}  // namespace fdspec
