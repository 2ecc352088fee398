// SPDX-License-Identifier: Apache-2.0
// Quantises one row of activations, for kernels that have just computed it. Kernel files only.
#pragma once

#include "common/vec.h"
#include "linear/quantized_rows.h"

namespace fdspec {
namespace FDSPEC_ISA {

// Up to this magnitude a block counts as zero, since 127 / magnitude could overflow.
constexpr float kSmallest = 0x1p-100f;
// Above this one it is refused, since kDotStart * scale could overflow.
constexpr float kLargest = 0x1p100f;

// The scale of a block, rounded to 22 bits; NaN for a magnitude that is NaN or too large.
FDSPEC_INLINE float block_scale(float largest) {
  if (!(largest <= kLargest)) return bit_cast<float>(0x7FC00000);
  return bit_cast<float>((bit_cast<uint32_t>(largest / 127.0f) + 2) & ~3u);
}

// Quantises one block of a row; returns the sum of its codes.
FDSPEC_INLINE int32_t quantize_block(const float* x, int count, QuantizedBlock* block, int lane) {
  const F16 low = F16::load_partial(x, min_of(count, kLanes));
  const F16 high = F16::load_partial(x + kLanes, max_of(count - kLanes, 0));
  // Magnitudes compare like integers, and so compared a NaN is the largest: it reaches the scale.
  const I16 magnitudes = max(abs(low).as_int_bits(), abs(high).as_int_bits());
  const float largest = bit_cast<float>(magnitudes.reduce_max());
  const bool is_regular = largest > kSmallest && largest <= kLargest;
  const F16 inverse = splat(is_regular ? 127.0f / largest : 0.0f);
  const I16 low_codes = (low * inverse).to_int();
  const I16 high_codes = (high * inverse).to_int();
  low_codes.store_int8(block->codes[lane]);
  high_codes.store_int8(block->codes[lane] + kLanes);
  const float scale = block_scale(largest);
  block->scale[lane] = scale;
  block->offset[lane] = -kDotStart * scale;
  return (low_codes + high_codes).reduce_add();
}

// Quantises x [args.dim] as row `row` of args.out.
FDSPEC_INLINE void quantize_row(const QuantizeRowsArgs& args, const float* x, int64_t row) {
  const int64_t num_blocks = ceil_div(args.dim, kBlockInputs);
  QuantizedBlock* blocks = args.out + row / kTileRows * num_blocks;
  const int lane = static_cast<int>(row % kTileRows);
  float group_sum = 0.0f;
  int64_t blocks_left = args.group_blocks;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const int count = static_cast<int>(min_of<int64_t>(kBlockInputs, args.dim - b * kBlockInputs));
    QuantizedBlock* block = blocks + b;
    const int32_t sum = quantize_block(x + b * kBlockInputs, count, block, lane);
    group_sum = __builtin_fmaf(block->scale[lane], static_cast<float>(sum), group_sum);
    block->start[lane] = kDotStartBits - args.zero_point * sum;
    block->group_sum[lane] = group_sum;
    if (--blocks_left == 0) {
      blocks_left = args.group_blocks;
      group_sum = 0.0f;
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
