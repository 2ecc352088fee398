// SPDX-License-Identifier: Apache-2.0
// Quantises one row of activations, for kernels that have just computed it. Kernel files only.
#pragma once

#include "common/vec.h"
#include "linear/quantized_rows.h"

namespace fdspec {
namespace FDSPEC_ISA {

// Up to this magnitude a block counts as zero, since 127 / magnitude could overflow.
constexpr float kSmallest = 0x1p-100f;
// Above this one its scale is NaN, since kDotStart * scale could overflow.
constexpr float kLargest = 0x1p100f;

// One block of a row; inputs past its end are 0.
struct BlockInputs {
  F16 low, high;

  FDSPEC_INLINE BlockInputs(const float* x, int64_t count) {
    if (count >= kBlockInputs) {
      low = F16::load(x);
      high = F16::load(x + kLanes);
    } else {
      low = F16::load_partial(x, static_cast<int>(min_of<int64_t>(count, kLanes)));
      high = F16::load_partial(x + kLanes, static_cast<int>(max_of<int64_t>(count - kLanes, 0)));
    }
  }
  // Bits of the largest magnitude. Magnitudes compare like integers, and so compared a NaN is the
  // largest: it reaches the scale.
  FDSPEC_INLINE int32_t largest() const {
    return max(abs(low).as_int_bits(), abs(high).as_int_bits()).reduce_max();
  }
  // Writes the codes; returns their sum.
  FDSPEC_INLINE int32_t quantize(F16 inverse, int8_t* codes) const {
    const I16 low_codes = (low * inverse).to_int();
    const I16 high_codes = (high * inverse).to_int();
    low_codes.store_int8(codes);
    high_codes.store_int8(codes + kLanes);
    return (low_codes + high_codes).reduce_add();
  }
};

// The numbers of up to 16 blocks in a row, computed together.
struct alignas(64) BlockScales {
  float inverse[kLanes], scale[kLanes], offset[kLanes];

  // x: [inputs]
  FDSPEC_INLINE BlockScales(const float* x, int64_t inputs) {
    alignas(64) int32_t bits[kLanes] = {};
    for (int64_t k = 0; k < min_of<int64_t>(inputs, kLanes * kBlockInputs); k += kBlockInputs) {
      bits[k / kBlockInputs] = BlockInputs(x + k, inputs - k).largest();
    }
    const F16 largest = I16::load(bits).as_float_bits();
    const M16 fits = splat(kLargest) >= largest;
    (select((largest > splat(kSmallest)) & fits, splat(127.0f) / largest, F16::zero()))
        .store(inverse);
    const I16 rounded =
        ((largest / splat(127.0f)).as_int_bits() + I16::broadcast(2)) & I16::broadcast(~3);
    const F16 nan = I16::broadcast(0x7FC00000).as_float_bits();
    const F16 scales = select(fits, rounded.as_float_bits(), nan);
    scales.store(scale);
    (splat(-kDotStart) * scales).store(offset);
  }
};

// Quantises x [args.dim] as row `row` of args.out.
FDSPEC_INLINE void quantize_row(const QuantizeRowsArgs& args, const float* x, int64_t row) {
  QuantizedBlock* block = args.out + row / kTileRows * ceil_div(args.dim, kBlockInputs);
  const int lane = static_cast<int>(row % kTileRows);
  float group_sum = 0.0f;
  int64_t blocks_left = args.group_blocks;
  for (int64_t begin = 0; begin < args.dim; begin += kLanes * kBlockInputs) {
    const BlockScales scales(x + begin, args.dim - begin);
    const int64_t end = min_of<int64_t>(begin + kLanes * kBlockInputs, args.dim);
    int i = 0;
    for (int64_t k = begin; k < end; k += kBlockInputs, ++i, ++block) {
      const int32_t sum =
          BlockInputs(x + k, args.dim - k).quantize(splat(scales.inverse[i]), block->codes[lane]);
      group_sum = __builtin_fmaf(scales.scale[i], static_cast<float>(sum), group_sum);
      block->scale[lane] = scales.scale[i];
      block->offset[lane] = scales.offset[i];
      block->start[lane] = kDotStartBits - args.zero_point * sum;
      block->group_sum[lane] = group_sum;
      if (--blocks_left == 0) {
        blocks_left = args.group_blocks;
        group_sum = 0.0f;
      }
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
