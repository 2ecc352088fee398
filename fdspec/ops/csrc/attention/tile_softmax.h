// SPDX-License-Identifier: Apache-2.0
// Softmax over one part of the keys of a tile of up to 16 queries. Scores come as a tile product
// leaves them, a row for each key; weights leave as bfloat16, a row for each query. Only x.amx.cc
// files may include this.
//
// A vector holds the scores of kLanes / kWidth neighbouring keys and kWidth queries: so few queries
// need few vectors. Largest scores and sums run over vectors, and over lanes at the end only.
#pragma once

#include <immintrin.h>

#include "attention/attention.h"
#include "attention/states.h"
#include "attention/transpose.h"
#include "common/vec.h"

namespace fdspec {
namespace amx {

using namespace avx512;  // NOLINT: this header is a part of the same kernels

// Lane i of the result is lane i + kShift of v, cyclically; kShift is 4 or 8.
template <int kShift>
FDSPEC_INLINE F16 rotate_lanes(F16 v) {
  return {_mm512_shuffle_f32x4(v.v, v.v, kShift == 8 ? 0x4E : 0x39)};
}

// scores[kPartKeys][kTileQueries] of an int8 cache, multiplied by the keys' scales.
FDSPEC_INLINE void scale_scores(float* scores, const float* key_scales) {
  for (int key = 0; key < kPartKeys; ++key) {
    float* row = scores + key * kTileQueries;
    (F16::load(row) * splat(key_scales[key])).store(row);
  }
}

// scores[kPartKeys][kTileQueries]: -inf where a query does not see a key. `visible` is how many
// keys each query sees.
FDSPEC_INLINE void mask_scores(float* scores, I16 visible) {
  const int least = -(I16::zero() - visible).reduce_max();
  for (int key = least; key < kPartKeys; ++key) {
    float* row = scores + key * kTileQueries;
    select(visible > I16::broadcast(key), F16::load(row), splat(-kInfinity)).store(row);
  }
}

template <int kWidth, class Weights>
class TileSoftmax {
 public:
  // scores: [kPartKeys, kTileQueries]; value_scales: [kPartKeys] of an int8 cache
  FDSPEC_INLINE TileSoftmax(const float* scores, const float* value_scales)
      : scores_(scores), value_scales_(value_scales) {
    if constexpr (kWidth < kLanes) {
#pragma GCC unroll 32
      for (int vector = 0; vector < kVectors; ++vector) gathered_[vector] = gather(vector);
    }
  }

  // Writes m and l of kWidth queries, and what multiplies the values, pairs of keys in a word:
  // [pairs, kWidth].
  FDSPEC_INLINE void run(uint32_t* pairs, float* m, float* l) const {
    const F16 largest = find_largest();
    largest.store(m);
    F16 sums[kQuarter];
    constexpr int kStep = kWidth == kLanes ? 2 : 1;
#pragma GCC unroll 2
    for (int i = 0; i < kQuarter; i += kStep) {
      F16 weights[4][kStep];
#pragma GCC unroll 4
      for (int quarter = 0; quarter < 4; ++quarter) {
#pragma GCC unroll 2
        for (int j = 0; j < kStep; ++j) {
          weights[quarter][j] = weight(quarter * kQuarter + i + j, largest);
        }
        store_factors(weights[quarter], quarter * kQuarter + i, pairs);
      }
#pragma GCC unroll 2
      for (int j = 0; j < kStep; ++j) {
        sums[i + j] = (weights[0][j] + weights[1][j]) + (weights[2][j] + weights[3][j]);
      }
    }
    add_up(sums).store(l);
  }

 private:
  static constexpr int kKeys = kLanes / kWidth;  // of a vector
  static constexpr int kVectors = kPartKeys / kKeys;
  static constexpr int kQuarter = kVectors / 4;

  FDSPEC_INLINE F16 score(int vector) const {
    if constexpr (kWidth < kLanes) {
      return gathered_[vector];
    } else {
      return F16::load(scores_ + vector * kTileQueries);
    }
  }

  // The scores of a few queries for the keys of a vector.
  FDSPEC_INLINE F16 gather(int vector) const {
    const float* row = scores_ + vector * kKeys * kTileQueries;
    if constexpr (kWidth == 8) {
      const __m512 low = _mm512_castps256_ps512(_mm256_loadu_ps(row));
      return {_mm512_insertf32x8(low, _mm256_loadu_ps(row + kTileQueries), 1)};
    }
    __m512 quarters = _mm512_castps128_ps512(_mm_loadu_ps(row));
    quarters = _mm512_insertf32x4(quarters, _mm_loadu_ps(row + kTileQueries), 1);
    quarters = _mm512_insertf32x4(quarters, _mm_loadu_ps(row + 2 * kTileQueries), 2);
    return {_mm512_insertf32x4(quarters, _mm_loadu_ps(row + 3 * kTileQueries), 3)};
  }

  FDSPEC_INLINE F16 find_largest() const {
    F16 top[4] = {score(0), score(1), score(2), score(3)};
#pragma GCC unroll 4
    for (int i = 4; i < kVectors; i += 4) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) top[j] = max(top[j], score(i + j));
    }
    F16 largest = max(max(top[0], top[1]), max(top[2], top[3]));
    if constexpr (kWidth <= 8) largest = max(largest, rotate_lanes<8>(largest));
    if constexpr (kWidth <= 4) largest = max(largest, rotate_lanes<4>(largest));
    return largest;
  }

  FDSPEC_INLINE F16 weight(int vector, F16 largest) const {
    return Weights::added(Weights::weight(score(vector) - largest));
  }

  // Of the vectors from `first` on, as many as store_pairs takes.
  FDSPEC_INLINE void store_factors(const F16* weights, int first, uint32_t* pairs) const {
    uint32_t* words = pairs + first * (kLanes / 2);
    if constexpr (!kHasScales<Weights>) {
      store_pairs(weights, words);
    } else if constexpr (kWidth == kLanes) {
      const F16 factors[2] = {Weights::scaled(weights[0], splat(value_scales_[first])),
                              Weights::scaled(weights[1], splat(value_scales_[first + 1]))};
      store_pairs(factors, words);
    } else {
      const F16 factor = Weights::scaled(weights[0], spread_scales(first));
      store_pairs(&factor, words);
    }
  }

  // The scales of a vector's keys, each for kWidth queries.
  FDSPEC_INLINE F16 spread_scales(int vector) const {
    const __m512i key_of_lane = _mm512_srli_epi32(I16::iota().v, kWidth == 8 ? 3 : 2);
    const __m512 scales = F16::load_partial(value_scales_ + vector * kKeys, kKeys).v;
    return {_mm512_permutexvar_ps(key_of_lane, scales)};
  }

  // The words of two vectors of one key each, or of one vector of more keys.
  FDSPEC_INLINE void store_pairs(const F16* weights, uint32_t* words) const {
    const __m512i bits = weights[0].as_int_bits().v;
    if constexpr (kWidth == 16) {
      _mm512_storeu_si512(words,
                          _mm512_or_si512(_mm512_srli_epi32(bits, 16), weights[1].as_int_bits().v));
    } else {
      // Keys 0, 2 to the lower half, 1, 3 to the upper one; with two keys they are there.
      const __m512i apart = kWidth == 8 ? bits : _mm512_shuffle_i32x4(bits, bits, 0xD8);
      const __m256i even = _mm512_castsi512_si256(_mm512_srli_epi32(apart, 16));
      const __m256i odd = _mm512_extracti64x4_epi64(apart, 1);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm256_or_si256(even, odd));
    }
  }

  // Adds sums of keys that are 8, 4, 2 and 1 apart.
  FDSPEC_INLINE F16 add_up(F16* sums) const {
#pragma GCC unroll 4
    for (int count = kQuarter / 2; count >= 1; count /= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < count; ++i) sums[i] = sums[i] + sums[i + count];
    }
    F16 sum = sums[0];
    if constexpr (kWidth <= 8) sum = sum + rotate_lanes<8>(sum);
    if constexpr (kWidth <= 4) sum = sum + rotate_lanes<4>(sum);
    return sum;
  }

  const float* scores_;
  const float* value_scales_;
  F16 gathered_[kWidth < kLanes ? kVectors : 1];
};

// weights[kWidth][kPartKeys] = the pairs of keys transposed.
template <int kWidth>
FDSPEC_INLINE void transpose_pairs(const uint32_t* pairs, uint16_t* weights) {
  for (int first = 0; first < kPartKeys / 2; first += kLanes) {
    const void* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = pairs + (first + i) * kWidth;
    I16 words[kLanes];
    transpose_words(rows, kWidth, words);
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) words[i].store(weights + i * kPartKeys + 2 * first);
  }
}

template <int kWidth, class Weights>
FDSPEC_INLINE void softmax_tile(const float* scores, const float* value_scales, uint32_t* pairs,
                                uint16_t* weights, States states) {
  TileSoftmax<kWidth, Weights>(scores, value_scales).run(pairs, states.m, states.l);
  transpose_pairs<kWidth>(pairs, weights);
}

}  // namespace amx
}  // namespace fdspec
