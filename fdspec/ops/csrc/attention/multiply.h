// SPDX-License-Identifier: Apache-2.0
// Small matrix products c = a . b (+ c) in registers. How an element of c is summed does not depend
// on the tile that it falls into, so tiling never changes a bit:
//
//   OneChain    one chain of fma over k in ascending order
//   PairChains  for each 32 values of k: one chain over the even k and one over
//               the odd k, both from 0; then c + (even + odd)
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

struct Product {
  const float* a;
  int64_t a_stride;
  float* c;
  int64_t c_stride;
  int k_begin;  // a multiple of the chains' kBlock
  int k_end;
  bool accumulate;  // start from c, else from 0

  FDSPEC_INLINE float* at(int row, int column) const { return c + row * c_stride + column; }
};

// sums[row][panel] += a[row][k] * b[k] of one k.
template <int kRows, int kPanels, class Matrix>
FDSPEC_INLINE void multiply_step(const Product& p, const Matrix& b, int k, int column,
                                 F16 sums[kRows][kPanels]) {
  F16 values[kPanels];
#pragma GCC unroll 4
  for (int panel = 0; panel < kPanels; ++panel) values[panel] = b.load(k, column + panel * kLanes);
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    const F16 factor = F16::broadcast(p.a[row * p.a_stride + k]);
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      sums[row][panel] = fma(factor, values[panel], sums[row][panel]);
    }
  }
}

struct OneChain {
  static constexpr int kBlock = 1;
  static constexpr int kMaxPanels = kFloatPanels;

  template <int kRows, int kPanels, class Matrix>
  static FDSPEC_INLINE void multiply_tile(const Product& p, const Matrix& b, int column) {
    F16 sums[kRows][kPanels];
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int panel = 0; panel < kPanels; ++panel) {
        sums[row][panel] =
            p.accumulate ? F16::load(p.at(row, column + panel * kLanes)) : F16::zero();
      }
    }
    for (int k = p.k_begin; k < p.k_end; ++k) {
      multiply_step<kRows, kPanels>(p, b, k, column, sums);
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int panel = 0; panel < kPanels; ++panel) {
        sums[row][panel].store(p.at(row, column + panel * kLanes));
      }
    }
  }
};

struct PairChains {
  static constexpr int kBlock = 32;
  // Half as many panels, as each needs two sums.
  static constexpr int kMaxPanels = kFloatPanels > 1 ? kFloatPanels / 2 : 1;

  template <int kRows, int kPanels, class Matrix>
  static FDSPEC_INLINE void multiply_tile(const Product& p, const Matrix& b, int column) {
    bool has_sum = p.accumulate;
    for (int begin = p.k_begin; begin < p.k_end || !has_sum; begin += kBlock) {
      const int end = min_of(p.k_end, begin + kBlock);
      F16 even[kRows][kPanels], odd[kRows][kPanels];
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
        for (int panel = 0; panel < kPanels; ++panel)
          even[row][panel] = odd[row][panel] = F16::zero();
      }
      int k = begin;
      for (; k + 1 < end; k += 2) {
        multiply_step<kRows, kPanels>(p, b, k, column, even);
        multiply_step<kRows, kPanels>(p, b, k + 1, column, odd);
      }
      if (k < end) multiply_step<kRows, kPanels>(p, b, k, column, even);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
        for (int panel = 0; panel < kPanels; ++panel) {
          float* c = p.at(row, column + panel * kLanes);
          const F16 before = has_sum ? F16::load(c) : F16::zero();
          (before + (even[row][panel] + odd[row][panel])).store(c);
        }
      }
      has_sum = true;
    }
  }
};

template <class Chains, int kRows, class Matrix>
void multiply_rows(const Product& p, const Matrix& b, int num_columns) {
  constexpr int kPanels = Chains::kMaxPanels;
  int column = 0;
  for (; column + kPanels * kLanes <= num_columns; column += kPanels * kLanes) {
    Chains::template multiply_tile<kRows, kPanels>(p, b, column);
  }
  for (; column < num_columns; column += kLanes) {
    Chains::template multiply_tile<kRows, 1>(p, b, column);
  }
}

template <int kRows>
inline constexpr int kRowsUpTo = kRows < kFloatRows ? kRows : kFloatRows;

// num_rows <= kFloatRows; num_columns is a multiple of kLanes.
template <class Chains, class Matrix>
FDSPEC_INLINE void multiply(const Product& p, const Matrix& b, int num_rows, int num_columns) {
  static_assert(kFloatRows <= 6);
  switch (num_rows) {
    case 1:
      return multiply_rows<Chains, 1>(p, b, num_columns);
    case 2:
      return multiply_rows<Chains, kRowsUpTo<2>>(p, b, num_columns);
    case 3:
      return multiply_rows<Chains, kRowsUpTo<3>>(p, b, num_columns);
    case 4:
      return multiply_rows<Chains, kRowsUpTo<4>>(p, b, num_columns);
    case 5:
      return multiply_rows<Chains, kRowsUpTo<5>>(p, b, num_columns);
    default:
      return multiply_rows<Chains, kFloatRows>(p, b, num_columns);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
