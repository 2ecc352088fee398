// SPDX-License-Identifier: Apache-2.0
// The vocabulary of vec.h on AVX-512 F/BW/VL/DQ + VNNI: one register for 16 lanes.
#pragma once

#include <immintrin.h>

#include "common/vec.h"

namespace fdspec {
namespace avx512 {

// Rows of a matrix product that share a weight register, by what 32 registers hold.
inline constexpr int kIntegerRows = 8;
inline constexpr int kManyRows = 4;
inline constexpr int kManyRowsPanels = 2;
inline constexpr int kFloatRows = 6;
inline constexpr int kFloatPanels = 4;

struct M16 {
  __mmask16 v;

  // Lanes [0, count) are set; 0 <= count <= 16.
  static FDSPEC_INLINE M16 first(int count) { return {static_cast<__mmask16>((1u << count) - 1u)}; }
  // Bit i is lane i.
  FDSPEC_INLINE uint32_t bits() const { return v; }
  FDSPEC_INLINE bool any() const { return v != 0; }
  friend FDSPEC_INLINE M16 operator&(M16 a, M16 b) { return {static_cast<__mmask16>(a.v & b.v)}; }
  friend FDSPEC_INLINE M16 operator|(M16 a, M16 b) { return {static_cast<__mmask16>(a.v | b.v)}; }
  friend FDSPEC_INLINE M16 operator~(M16 a) { return {static_cast<__mmask16>(~a.v)}; }
};

struct F16;

struct I16 {
  __m512i v;

  static FDSPEC_INLINE I16 zero() { return {_mm512_setzero_si512()}; }
  static FDSPEC_INLINE I16 broadcast(int32_t x) { return {_mm512_set1_epi32(x)}; }
  static FDSPEC_INLINE I16 load(const void* p) { return {_mm512_loadu_si512(p)}; }
  static FDSPEC_INLINE I16 load_partial(const int32_t* p, int count) {
    return {_mm512_maskz_loadu_epi32(M16::first(count).v, p)};
  }
  // Sixteen int8.
  static FDSPEC_INLINE I16 load_int8(const int8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  // 0, 1, ..., 15
  static FDSPEC_INLINE I16 iota() {
    return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
  }
  FDSPEC_INLINE void store(void* p) const { _mm512_storeu_si512(p, v); }
  // Each lane saturated to [-128, 127], as 16 bytes.
  FDSPEC_INLINE void store_int8(int8_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(v));
  }
  // Exact below 2^24, else rounded to nearest even.
  FDSPEC_INLINE F16 to_float() const;
  FDSPEC_INLINE F16 as_float_bits() const;
  FDSPEC_INLINE int32_t reduce_add() const { return _mm512_reduce_add_epi32(v); }
  FDSPEC_INLINE int32_t reduce_max() const { return _mm512_reduce_max_epi32(v); }

  friend FDSPEC_INLINE I16 operator+(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
  friend FDSPEC_INLINE I16 operator-(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
  // Low 32 bits of the product.
  friend FDSPEC_INLINE I16 operator*(I16 a, I16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
  friend FDSPEC_INLINE I16 operator&(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
  friend FDSPEC_INLINE I16 operator|(I16 a, I16 b) { return {_mm512_or_si512(a.v, b.v)}; }
  friend FDSPEC_INLINE I16 operator^(I16 a, I16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
};

// Logical left, logical right and arithmetic right shift by a constant.
template <int kBits>
FDSPEC_INLINE I16 shift_left(I16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
FDSPEC_INLINE I16 shift_right(I16 a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
template <int kBits>
FDSPEC_INLINE I16 shift_right_signed(I16 a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
// High 32 bits of the unsigned product.
FDSPEC_INLINE I16 multiply_high_unsigned(I16 a, I16 b) {
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(a.v, b.v), 32);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  return {_mm512_mask_mov_epi32(even, 0xAAAA, odd)};
}
FDSPEC_INLINE I16 max(I16 a, I16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
FDSPEC_INLINE I16 min(I16 a, I16 b) { return {_mm512_min_epi32(a.v, b.v)}; }
FDSPEC_INLINE M16 operator==(I16 a, I16 b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
FDSPEC_INLINE M16 operator>(I16 a, I16 b) { return {_mm512_cmpgt_epi32_mask(a.v, b.v)}; }
FDSPEC_INLINE M16 operator<(I16 a, I16 b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
// mask ? a : b
FDSPEC_INLINE I16 select(M16 mask, I16 a, I16 b) {
  return {_mm512_mask_mov_epi32(b.v, mask.v, a.v)};
}
// Stores the lanes that are set one after another; the rest of the 16 numbers at p is undefined.
FDSPEC_INLINE void store_set(M16 mask, I16 a, int32_t* p) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(mask.v, a.v));
}

struct F16 {
  __m512 v;

  static FDSPEC_INLINE F16 zero() { return {_mm512_setzero_ps()}; }
  static FDSPEC_INLINE F16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static FDSPEC_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  // Lanes [0, count) are read, the others are 0; 0 <= count <= 16.
  static FDSPEC_INLINE F16 load_partial(const float* p, int count) {
    return {_mm512_maskz_loadu_ps(M16::first(count).v, p)};
  }
  static FDSPEC_INLINE F16 load_bf16(const uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
  static FDSPEC_INLINE F16 load_bf16_partial(const uint16_t* p, int count) {
    const __m256i half = _mm256_maskz_loadu_epi16(M16::first(count).v, p);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
  // IEEE half precision.
  static FDSPEC_INLINE F16 load_fp16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  // base[index[lane]]
  static FDSPEC_INLINE F16 gather(const float* base, I16 index) {
    return {_mm512_i32gather_ps(index.v, base, sizeof(float))};
  }
  FDSPEC_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
  FDSPEC_INLINE void store_partial(float* p, int count) const {
    _mm512_mask_storeu_ps(p, M16::first(count).v, v);
  }
  // Rounded to nearest even; a NaN stays a NaN.
  FDSPEC_INLINE void store_bf16(uint16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16());
  }
  FDSPEC_INLINE void store_bf16_partial(uint16_t* p, int count) const {
    _mm256_mask_storeu_epi16(p, M16::first(count).v, to_bf16());
  }
  // Rounded to nearest even; out of range gives INT32_MIN.
  FDSPEC_INLINE I16 to_int() const { return {_mm512_cvtps_epi32(v)}; }
  FDSPEC_INLINE I16 as_int_bits() const { return {_mm512_castps_si512(v)}; }

  // ((l0+l8)+(l4+l12)) + ((l2+l10)+(l6+l14)) + ... : lane i takes lane i+8, then i+4, i+2, i+1.
  FDSPEC_INLINE float reduce_add() const {
    const __m256 a = _mm256_add_ps(low_half(), high_half());
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
  }
  FDSPEC_INLINE float reduce_max() const {
    const __m256 a = _mm256_max_ps(low_half(), high_half());
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
  }

  friend FDSPEC_INLINE F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend FDSPEC_INLINE F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend FDSPEC_INLINE F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend FDSPEC_INLINE F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }

 private:
  FDSPEC_INLINE __m256 low_half() const { return _mm512_castps512_ps256(v); }
  FDSPEC_INLINE __m256 high_half() const { return _mm512_extractf32x8_ps(v, 1); }
  FDSPEC_INLINE __m256i to_bf16() const {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
  }
};

FDSPEC_INLINE F16 I16::to_float() const { return {_mm512_cvtepi32_ps(v)}; }
FDSPEC_INLINE F16 I16::as_float_bits() const { return {_mm512_castsi512_ps(v)}; }

// a * b + c and c - a * b, rounded once.
FDSPEC_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
FDSPEC_INLINE F16 fnma(F16 a, F16 b, F16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
FDSPEC_INLINE F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
FDSPEC_INLINE F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
FDSPEC_INLINE F16 sqrt(F16 a) { return {_mm512_sqrt_ps(a.v)}; }
FDSPEC_INLINE F16 abs(F16 a) { return {_mm512_abs_ps(a.v)}; }
// Comparisons with a NaN are false.
FDSPEC_INLINE M16 operator==(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
FDSPEC_INLINE M16 operator>(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
FDSPEC_INLINE M16 operator<(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
FDSPEC_INLINE M16 operator>=(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
FDSPEC_INLINE M16 is_nan(F16 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
// mask ? a : b
FDSPEC_INLINE F16 select(M16 mask, F16 a, F16 b) { return {_mm512_mask_mov_ps(b.v, mask.v, a.v)}; }

struct U8x64 {
  __m512i v;

  static FDSPEC_INLINE U8x64 load(const void* p) { return {_mm512_loadu_si512(p)}; }
  FDSPEC_INLINE void store(void* p) const { _mm512_storeu_si512(p, v); }
  FDSPEC_INLINE U8x64 low_nibbles() const { return {_mm512_and_si512(v, _mm512_set1_epi8(0x0F))}; }
  FDSPEC_INLINE U8x64 high_nibbles() const {
    return {_mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(0x0F))};
  }
};

// The low nibble of each lane, less a zero point, as a float.
struct NibbleFloats {
  __m512 table;

  explicit FDSPEC_INLINE NibbleFloats(int32_t zero_point)
      : table((I16::iota() - I16::broadcast(zero_point)).to_float().v) {}
  FDSPEC_INLINE F16 operator()(I16 nibbles) const {
    return {_mm512_permutexvar_ps(nibbles.v, table)};
  }
};

// Sum over up to 32 inputs of (weight - zero_point) * activation, as the float kDotStart + sum,
// where weights are the nibbles 0..15 and activations lie in [-127, 127]. `start` is kDotStartBits
// - zero_point * (sum of activations).
struct NibbleDot {
  __m512i v;

  NibbleDot() = default;
  explicit FDSPEC_INLINE NibbleDot(int32_t start) : v(_mm512_set1_epi32(start)) {}
  FDSPEC_INLINE void add(U8x64 weights, int32_t four_activations) {
    v = _mm512_dpbusd_epi32(v, weights.v, _mm512_set1_epi32(four_activations));
  }
  FDSPEC_INLINE I16 sum() const { return {v}; }
};

// The same for bytes 0..255 that stand for weights -128..127, whose zero point must be 128.
struct ByteDot : NibbleDot {
  using NibbleDot::NibbleDot;
};

FDSPEC_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

}  // namespace avx512
}  // namespace fdspec
