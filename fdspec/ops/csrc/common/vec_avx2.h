// SPDX-License-Identifier: Apache-2.0
// The vocabulary of vec.h on AVX2 + FMA + F16C: a pair of registers, lanes 0-7 and 8-15.
#pragma once

#include <immintrin.h>

#include "common/vec.h"

namespace fdspec {
namespace avx2 {

// Rows of a matrix product that share a weight register, by what 16 registers hold.
inline constexpr int kIntegerRows = 4;
inline constexpr int kManyRows = 4;
inline constexpr int kManyRowsPanels = 1;
inline constexpr int kFloatRows = 3;
inline constexpr int kFloatPanels = 2;

// All bits of the 32-bit lanes [first, first + 8) below count are set.
FDSPEC_INLINE __m256i lane_mask(int first, int count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count - first), lane);
}

struct M16 {
  __m256 lo, hi;

  // Lanes [0, count) are set; 0 <= count <= 16.
  static FDSPEC_INLINE M16 first(int count) {
    return {_mm256_castsi256_ps(lane_mask(0, count)), _mm256_castsi256_ps(lane_mask(8, count))};
  }
  // Bit i is lane i.
  FDSPEC_INLINE uint32_t bits() const {
    return static_cast<uint32_t>(_mm256_movemask_ps(lo)) |
           static_cast<uint32_t>(_mm256_movemask_ps(hi)) << 8;
  }
  FDSPEC_INLINE bool any() const { return bits() != 0; }
  friend FDSPEC_INLINE M16 operator&(M16 a, M16 b) {
    return {_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)};
  }
  friend FDSPEC_INLINE M16 operator|(M16 a, M16 b) {
    return {_mm256_or_ps(a.lo, b.lo), _mm256_or_ps(a.hi, b.hi)};
  }
  friend FDSPEC_INLINE M16 operator~(M16 a) {
    const __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    return {_mm256_xor_ps(a.lo, ones), _mm256_xor_ps(a.hi, ones)};
  }
};

struct F16;

struct I16 {
  __m256i lo, hi;

  static FDSPEC_INLINE I16 zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static FDSPEC_INLINE I16 broadcast(int32_t x) {
    return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
  }
  static FDSPEC_INLINE I16 load(const void* p) {
    const __m256i* half = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)};
  }
  static FDSPEC_INLINE I16 load_partial(const int32_t* p, int count) {
    return {_mm256_maskload_epi32(p, lane_mask(0, count)),
            _mm256_maskload_epi32(p + 8, lane_mask(8, count))};
  }
  // Sixteen int8.
  static FDSPEC_INLINE I16 load_int8(const int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
  }
  // 0, 1, ..., 15
  static FDSPEC_INLINE I16 iota() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
  }
  FDSPEC_INLINE void store(void* p) const {
    __m256i* half = static_cast<__m256i*>(p);
    _mm256_storeu_si256(half, lo);
    _mm256_storeu_si256(half + 1, hi);
  }
  // Each lane saturated to [-128, 127], as 16 bytes.
  FDSPEC_INLINE void store_int8(int8_t* p) const {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xD8);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  // Exact below 2^24, else rounded to nearest even.
  FDSPEC_INLINE F16 to_float() const;
  FDSPEC_INLINE F16 as_float_bits() const;
  FDSPEC_INLINE int32_t reduce_add() const {
    const __m256i a = _mm256_add_epi32(lo, hi);
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xB1)));
  }
  FDSPEC_INLINE int32_t reduce_max() const {
    const __m256i a = _mm256_max_epi32(lo, hi);
    __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 0xB1)));
  }

  friend FDSPEC_INLINE I16 operator+(I16 a, I16 b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
  }
  friend FDSPEC_INLINE I16 operator-(I16 a, I16 b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
  }
  // Low 32 bits of the product.
  friend FDSPEC_INLINE I16 operator*(I16 a, I16 b) {
    return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
  }
  friend FDSPEC_INLINE I16 operator&(I16 a, I16 b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
  }
  friend FDSPEC_INLINE I16 operator|(I16 a, I16 b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
  }
  friend FDSPEC_INLINE I16 operator^(I16 a, I16 b) {
    return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
  }
};

// Logical left, logical right and arithmetic right shift by a constant.
template <int kBits>
FDSPEC_INLINE I16 shift_left(I16 a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
FDSPEC_INLINE I16 shift_right(I16 a) {
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
template <int kBits>
FDSPEC_INLINE I16 shift_right_signed(I16 a) {
  return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
}
FDSPEC_INLINE __m256i multiply_high_unsigned(__m256i a, __m256i b) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
  return _mm256_blend_epi32(even, odd, 0xAA);
}
// High 32 bits of the unsigned product.
FDSPEC_INLINE I16 multiply_high_unsigned(I16 a, I16 b) {
  return {multiply_high_unsigned(a.lo, b.lo), multiply_high_unsigned(a.hi, b.hi)};
}
FDSPEC_INLINE I16 max(I16 a, I16 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
FDSPEC_INLINE I16 min(I16 a, I16 b) {
  return {_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi)};
}
FDSPEC_INLINE M16 operator==(I16 a, I16 b) {
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.lo, b.lo)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.hi, b.hi))};
}
FDSPEC_INLINE M16 operator>(I16 a, I16 b) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.lo, b.lo)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(a.hi, b.hi))};
}
FDSPEC_INLINE M16 operator<(I16 a, I16 b) { return b > a; }
// mask ? a : b
FDSPEC_INLINE I16 select(M16 mask, I16 a, I16 b) {
  return {_mm256_blendv_epi8(b.lo, a.lo, _mm256_castps_si256(mask.lo)),
          _mm256_blendv_epi8(b.hi, a.hi, _mm256_castps_si256(mask.hi))};
}
// Stores the lanes that are set one after another; the rest of the 16 numbers at p is undefined.
FDSPEC_INLINE void store_set(M16 mask, I16 a, int32_t* p) {
  int32_t lanes[kLanes];
  a.store(lanes);
  for (uint32_t bits = mask.bits(); bits != 0; bits &= bits - 1) *p++ = lanes[__builtin_ctz(bits)];
}

FDSPEC_INLINE __m256 widen_bf16(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

FDSPEC_INLINE __m256i round_to_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}

struct F16 {
  __m256 lo, hi;

  static FDSPEC_INLINE F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static FDSPEC_INLINE F16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static FDSPEC_INLINE F16 load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  }
  // Lanes [0, count) are read, the others are 0; 0 <= count <= 16.
  static FDSPEC_INLINE F16 load_partial(const float* p, int count) {
    return {_mm256_maskload_ps(p, lane_mask(0, count)),
            _mm256_maskload_ps(p + 8, lane_mask(8, count))};
  }
  static FDSPEC_INLINE F16 load_bf16(const uint16_t* p) {
    const __m128i* half = reinterpret_cast<const __m128i*>(p);
    return {widen_bf16(_mm_loadu_si128(half)), widen_bf16(_mm_loadu_si128(half + 1))};
  }
  static FDSPEC_INLINE F16 load_bf16_partial(const uint16_t* p, int count) {
    uint16_t full[16] = {};
    std::memcpy(full, p, sizeof(uint16_t) * static_cast<unsigned>(count));
    return load_bf16(full);
  }
  // IEEE half precision.
  static FDSPEC_INLINE F16 load_fp16(const uint16_t* p) {
    const __m128i* half = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
  }
  // base[index[lane]]
  static FDSPEC_INLINE F16 gather(const float* base, I16 index) {
    return {_mm256_i32gather_ps(base, index.lo, sizeof(float)),
            _mm256_i32gather_ps(base, index.hi, sizeof(float))};
  }
  FDSPEC_INLINE void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  FDSPEC_INLINE void store_partial(float* p, int count) const {
    _mm256_maskstore_ps(p, lane_mask(0, count), lo);
    _mm256_maskstore_ps(p + 8, lane_mask(8, count), hi);
  }
  // Rounded to nearest even; a NaN stays a NaN.
  FDSPEC_INLINE void store_bf16(uint16_t* p) const {
    const __m256i packed = _mm256_packus_epi32(round_to_bf16(lo), round_to_bf16(hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
  }
  FDSPEC_INLINE void store_bf16_partial(uint16_t* p, int count) const {
    uint16_t full[16];
    store_bf16(full);
    std::memcpy(p, full, sizeof(uint16_t) * static_cast<unsigned>(count));
  }
  // Rounded to nearest even; out of range gives INT32_MIN.
  FDSPEC_INLINE I16 to_int() const { return {_mm256_cvtps_epi32(lo), _mm256_cvtps_epi32(hi)}; }
  FDSPEC_INLINE I16 as_int_bits() const {
    return {_mm256_castps_si256(lo), _mm256_castps_si256(hi)};
  }

  // ((l0+l8)+(l4+l12)) + ((l2+l10)+(l6+l14)) + ... : lane i takes lane i+8, then i+4, i+2, i+1.
  FDSPEC_INLINE float reduce_add() const {
    const __m256 a = _mm256_add_ps(lo, hi);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
  }
  FDSPEC_INLINE float reduce_max() const {
    const __m256 a = _mm256_max_ps(lo, hi);
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
  }

  friend FDSPEC_INLINE F16 operator+(F16 a, F16 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  friend FDSPEC_INLINE F16 operator-(F16 a, F16 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  friend FDSPEC_INLINE F16 operator*(F16 a, F16 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  friend FDSPEC_INLINE F16 operator/(F16 a, F16 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
  }
};

FDSPEC_INLINE F16 I16::to_float() const { return {_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)}; }
FDSPEC_INLINE F16 I16::as_float_bits() const {
  return {_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)};
}

// a * b + c and c - a * b, rounded once.
FDSPEC_INLINE F16 fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
FDSPEC_INLINE F16 fnma(F16 a, F16 b, F16 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
FDSPEC_INLINE F16 max(F16 a, F16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
FDSPEC_INLINE F16 min(F16 a, F16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
FDSPEC_INLINE F16 sqrt(F16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
FDSPEC_INLINE F16 abs(F16 a) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
// Comparisons with a NaN are false.
FDSPEC_INLINE M16 operator==(F16 a, F16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
FDSPEC_INLINE M16 operator>(F16 a, F16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}
FDSPEC_INLINE M16 operator<(F16 a, F16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
FDSPEC_INLINE M16 operator>=(F16 a, F16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)};
}
FDSPEC_INLINE M16 is_nan(F16 a) {
  return {_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}
// mask ? a : b
FDSPEC_INLINE F16 select(M16 mask, F16 a, F16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, mask.lo), _mm256_blendv_ps(b.hi, a.hi, mask.hi)};
}

struct U8x64 {
  __m256i lo, hi;

  static FDSPEC_INLINE U8x64 load(const void* p) {
    const __m256i* half = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)};
  }
  FDSPEC_INLINE void store(void* p) const {
    __m256i* half = static_cast<__m256i*>(p);
    _mm256_storeu_si256(half, lo);
    _mm256_storeu_si256(half + 1, hi);
  }
  FDSPEC_INLINE U8x64 low_nibbles() const {
    const __m256i mask = _mm256_set1_epi8(0x0F);
    return {_mm256_and_si256(lo, mask), _mm256_and_si256(hi, mask)};
  }
  FDSPEC_INLINE U8x64 high_nibbles() const {
    const __m256i mask = _mm256_set1_epi8(0x0F);
    return {_mm256_and_si256(_mm256_srli_epi16(lo, 4), mask),
            _mm256_and_si256(_mm256_srli_epi16(hi, 4), mask)};
  }
};

// The low nibble of each lane, less a zero point, as a float.
struct NibbleFloats {
  I16 zero_points;

  explicit FDSPEC_INLINE NibbleFloats(int32_t zero_point)
      : zero_points(I16::broadcast(zero_point)) {}
  FDSPEC_INLINE F16 operator()(I16 nibbles) const {
    return ((nibbles & I16::broadcast(0x0F)) - zero_points).to_float();
  }
};

// Keeps a sum that grows in its register: GCC would put all additions off to the end, and the
// products, meanwhile, on the stack.
FDSPEC_INLINE void keep_in_register(__m256i& sum) { asm("" : "+x"(sum)); }

// Sum over up to 32 inputs of (weight - zero_point) * activation, as the float kDotStart + sum,
// where weights are the nibbles 0..15 and activations lie in [-127, 127]. `start` is kDotStartBits
// - zero_point * (sum of activations). Pairs are summed in 16 bits: 32 inputs reach at most 16 * 15
// * 127 = 30480 there.
struct NibbleDot {
  __m256i lo, hi;
  int32_t start;

  NibbleDot() = default;
  explicit FDSPEC_INLINE NibbleDot(int32_t start)
      : lo(_mm256_setzero_si256()), hi(_mm256_setzero_si256()), start(start) {}
  FDSPEC_INLINE void add(U8x64 weights, int32_t four_activations) {
    const __m256i activations = _mm256_set1_epi32(four_activations);
    lo = _mm256_add_epi16(lo, _mm256_maddubs_epi16(weights.lo, activations));
    hi = _mm256_add_epi16(hi, _mm256_maddubs_epi16(weights.hi, activations));
    keep_in_register(lo);
    keep_in_register(hi);
  }
  FDSPEC_INLINE I16 sum() const {
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i starts = _mm256_set1_epi32(start);
    return {_mm256_add_epi32(starts, _mm256_madd_epi16(lo, ones)),
            _mm256_add_epi32(starts, _mm256_madd_epi16(hi, ones))};
  }
};

// The same for bytes 0..255 that stand for weights -128..127, whose zero point must be 128. A pair
// |weight| * (+-activation) is at most 2 * 128 * 127 = 32512; taken with signed weights, the sum
// needs no correction by the zero point.
struct ByteDot {
  __m256i lo, hi;

  ByteDot() = default;
  explicit FDSPEC_INLINE ByteDot(int32_t) : lo(_mm256_set1_epi32(kDotStartBits)), hi(lo) {}
  FDSPEC_INLINE void add(U8x64 weights, int32_t four_activations) {
    const __m256i activations = _mm256_set1_epi32(four_activations);
    lo = _mm256_add_epi32(lo, dot4(weights.lo, activations));
    hi = _mm256_add_epi32(hi, dot4(weights.hi, activations));
    keep_in_register(lo);
    keep_in_register(hi);
  }
  FDSPEC_INLINE I16 sum() const { return {lo, hi}; }

 private:
  static FDSPEC_INLINE __m256i dot4(__m256i biased_weights, __m256i activations) {
    const __m256i weights =
        _mm256_xor_si256(biased_weights, _mm256_set1_epi8(static_cast<char>(0x80)));
    const __m256i pairs =
        _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(activations, weights));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
};

FDSPEC_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

}  // namespace avx2
}  // namespace fdspec
