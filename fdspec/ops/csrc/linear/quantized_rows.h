// SPDX-License-Identifier: Apache-2.0
// Activations as 8-bit integers: each block of 32 inputs of a row has its own scale
// (largest magnitude / 127, rounded to 22 significant bits) and codes rounded to nearest,
// -127..127. A block with a value that is no number, or above 2^100 in magnitude, has the scale
// NaN.
#pragma once

#include "common/dispatch.h"
#include "linear/packed_weight.h"

namespace fdspec {

// Rows are taken in tiles of 8, so that a kernel finds 8 rows of a block at fixed offsets.
inline constexpr int kTileRows = 8;

// One block of 32 inputs of a tile. The matrix is [tiles][blocks].
struct alignas(32) QuantizedBlock {
  int8_t codes[kTileRows][kBlockInputs];
  float scale[kTileRows];
  // -kDotStart * scale: exact, as 22 bits times 3 are at most 24.
  float offset[kTileRows];
  // kDotStartBits - zero_point * (sum of codes): what a dot product with weight codes starts from
  // to become one with (code - zero_point).
  int32_t start[kTileRows];
  // Sum of scale * codes from the first block of the weight's group up to this one; a weight's
  // minimum is multiplied with the value at the end of its group.
  float group_sum[kTileRows];
};

struct QuantizeRowsArgs {
  const float* x;  // [rows, dim]
  QuantizedBlock* out;
  int64_t rows;
  int64_t dim;
  int64_t group_blocks;
  int zero_point;
};

FDSPEC_INLINE int64_t num_quantized_blocks(int64_t rows, int64_t dim) {
  return ceil_div(rows, kTileRows) * ceil_div(dim, kBlockInputs);
}

// Slices split the rows.
FDSPEC_DECLARE_KERNEL(quantize_rows, QuantizeRowsArgs)

}  // namespace fdspec
