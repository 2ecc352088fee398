// SPDX-License-Identifier: Apache-2.0
// Small matrix products c = a . b (+ c) in registers. Every element of c is one fma chain over k
// in ascending order, whatever tile it falls into, so tiling never changes a bit.
#pragma once

#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

// b as floats: row k starts at base + k * stride.
struct FloatMatrix {
  const float* base;
  int64_t stride;

  FDSPEC_INLINE F16 load(int k, int column) const { return F16::load(base + k * stride + column); }
};

// b as rows anywhere in memory.
struct FloatRows {
  const void* const* rows;

  FDSPEC_INLINE F16 load(int k, int column) const {
    return F16::load(static_cast<const float*>(rows[k]) + column);
  }
};
struct BFloat16Rows {
  const void* const* rows;

  FDSPEC_INLINE F16 load(int k, int column) const {
    return F16::load_bf16(static_cast<const uint16_t*>(rows[k]) + column);
  }
};

struct Product {
  const float* a;
  int64_t a_stride;
  float* c;
  int64_t c_stride;
  int k_begin;
  int k_end;
  bool accumulate;  // start from c, else from 0
};

template <int kRows, int kPanels, class Matrix>
FDSPEC_INLINE void multiply_tile(const Product& p, const Matrix& b, int column) {
  F16 sums[kRows][kPanels];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      sums[row][panel] =
          p.accumulate ? F16::load(p.c + row * p.c_stride + column + panel * kLanes) : F16::zero();
    }
  }
  for (int k = p.k_begin; k < p.k_end; ++k) {
    F16 values[kPanels];
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      values[panel] = b.load(k, column + panel * kLanes);
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const F16 factor = F16::broadcast(p.a[row * p.a_stride + k]);
#pragma GCC unroll 4
      for (int panel = 0; panel < kPanels; ++panel) {
        sums[row][panel] = fma(factor, values[panel], sums[row][panel]);
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      sums[row][panel].store(p.c + row * p.c_stride + column + panel * kLanes);
    }
  }
}

template <int kRows, class Matrix>
void multiply_rows(const Product& p, const Matrix& b, int num_columns) {
  int column = 0;
  for (; column + kFloatPanels * kLanes <= num_columns; column += kFloatPanels * kLanes) {
    multiply_tile<kRows, kFloatPanels>(p, b, column);
  }
  for (; column < num_columns; column += kLanes) multiply_tile<kRows, 1>(p, b, column);
}

template <int kRows>
inline constexpr int kRowsUpTo = kRows < kFloatRows ? kRows : kFloatRows;

// num_rows <= kFloatRows; num_columns is a multiple of kLanes.
template <class Matrix>
FDSPEC_INLINE void multiply(const Product& p, const Matrix& b, int num_rows, int num_columns) {
  static_assert(kFloatRows <= 6);
  switch (num_rows) {
    case 1:
      return multiply_rows<1>(p, b, num_columns);
    case 2:
      return multiply_rows<kRowsUpTo<2>>(p, b, num_columns);
    case 3:
      return multiply_rows<kRowsUpTo<3>>(p, b, num_columns);
    case 4:
      return multiply_rows<kRowsUpTo<4>>(p, b, num_columns);
    case 5:
      return multiply_rows<kRowsUpTo<5>>(p, b, num_columns);
    default:
      return multiply_rows<kFloatRows>(p, b, num_columns);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
