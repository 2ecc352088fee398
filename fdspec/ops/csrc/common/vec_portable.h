// SPDX-License-Identifier: Apache-2.0
// The vocabulary of vec.h in plain C++: arrays of 16. It runs on every processor and is what the
// other levels are compared with.
#pragma once

#include <cmath>

#include "common/vec.h"

namespace fdspec {
namespace portable {

// Rows of a matrix product that are computed together.
inline constexpr int kIntegerRows = 2;
inline constexpr int kManyRows = 2;
inline constexpr int kManyRowsPanels = 1;
inline constexpr int kFloatRows = 2;
inline constexpr int kFloatPanels = 1;

// Builds a vector from fn(lane).
template <class Vector, class Fn>
FDSPEC_INLINE Vector each_lane(Fn fn) {
  Vector result;
  for (int lane = 0; lane < kLanes; ++lane) result.v[lane] = fn(lane);
  return result;
}

struct M16 {
  bool v[kLanes];

  // Lanes [0, count) are set; 0 <= count <= 16.
  static FDSPEC_INLINE M16 first(int count) {
    return each_lane<M16>([=](int i) { return i < count; });
  }
  // Bit i is lane i.
  FDSPEC_INLINE uint32_t bits() const {
    uint32_t result = 0;
    for (int i = 0; i < kLanes; ++i) result |= static_cast<uint32_t>(v[i]) << i;
    return result;
  }
  FDSPEC_INLINE bool any() const { return bits() != 0; }
  friend FDSPEC_INLINE M16 operator&(M16 a, M16 b) {
    return each_lane<M16>([&](int i) { return a.v[i] && b.v[i]; });
  }
  friend FDSPEC_INLINE M16 operator|(M16 a, M16 b) {
    return each_lane<M16>([&](int i) { return a.v[i] || b.v[i]; });
  }
  friend FDSPEC_INLINE M16 operator~(M16 a) {
    return each_lane<M16>([&](int i) { return !a.v[i]; });
  }
};

struct F16;

struct I16 {
  int32_t v[kLanes];

  static FDSPEC_INLINE I16 zero() { return broadcast(0); }
  static FDSPEC_INLINE I16 broadcast(int32_t x) {
    return each_lane<I16>([=](int) { return x; });
  }
  static FDSPEC_INLINE I16 load(const void* p) { return read_as<I16>(p); }
  static FDSPEC_INLINE I16 load_partial(const int32_t* p, int count) {
    return each_lane<I16>([=](int i) { return i < count ? p[i] : 0; });
  }
  // Sixteen int8.
  static FDSPEC_INLINE I16 load_int8(const int8_t* p) {
    return each_lane<I16>([=](int i) { return int32_t{p[i]}; });
  }
  // 0, 1, ..., 15
  static FDSPEC_INLINE I16 iota() {
    return each_lane<I16>([](int i) { return i; });
  }
  FDSPEC_INLINE void store(void* p) const { std::memcpy(p, v, sizeof(v)); }
  // Each lane saturated to [-128, 127], as 16 bytes.
  FDSPEC_INLINE void store_int8(int8_t* p) const {
    for (int i = 0; i < kLanes; ++i) {
      p[i] = static_cast<int8_t>(max_of(-128, min_of(127, v[i])));
    }
  }
  // Exact below 2^24, else rounded to nearest even.
  FDSPEC_INLINE F16 to_float() const;
  FDSPEC_INLINE F16 as_float_bits() const;
  FDSPEC_INLINE int32_t reduce_add() const {
    uint32_t sum = 0;
    for (int i = 0; i < kLanes; ++i) sum += static_cast<uint32_t>(v[i]);
    return static_cast<int32_t>(sum);
  }
  FDSPEC_INLINE int32_t reduce_max() const {
    int32_t top = v[0];
    for (int i = 1; i < kLanes; ++i) top = max_of(top, v[i]);
    return top;
  }

  friend FDSPEC_INLINE I16 operator+(I16 a, I16 b) {
    return unsigned_lanes(a, b, [](uint32_t x, uint32_t y) { return x + y; });
  }
  friend FDSPEC_INLINE I16 operator-(I16 a, I16 b) {
    return unsigned_lanes(a, b, [](uint32_t x, uint32_t y) { return x - y; });
  }
  // Low 32 bits of the product.
  friend FDSPEC_INLINE I16 operator*(I16 a, I16 b) {
    return unsigned_lanes(a, b, [](uint32_t x, uint32_t y) { return x * y; });
  }
  friend FDSPEC_INLINE I16 operator&(I16 a, I16 b) {
    return unsigned_lanes(a, b, [](uint32_t x, uint32_t y) { return x & y; });
  }
  friend FDSPEC_INLINE I16 operator|(I16 a, I16 b) {
    return unsigned_lanes(a, b, [](uint32_t x, uint32_t y) { return x | y; });
  }
  friend FDSPEC_INLINE I16 operator^(I16 a, I16 b) {
    return unsigned_lanes(a, b, [](uint32_t x, uint32_t y) { return x ^ y; });
  }

  // Builds a vector from fn(a, b) on unsigned lanes, where overflow is defined.
  template <class Fn>
  static FDSPEC_INLINE I16 unsigned_lanes(I16 a, I16 b, Fn fn) {
    return each_lane<I16>([&](int i) {
      return static_cast<int32_t>(fn(static_cast<uint32_t>(a.v[i]), static_cast<uint32_t>(b.v[i])));
    });
  }
};

// Logical left, logical right and arithmetic right shift by a constant.
template <int kBits>
FDSPEC_INLINE I16 shift_left(I16 a) {
  return I16::unsigned_lanes(a, a, [](uint32_t x, uint32_t) { return x << kBits; });
}
template <int kBits>
FDSPEC_INLINE I16 shift_right(I16 a) {
  return I16::unsigned_lanes(a, a, [](uint32_t x, uint32_t) { return x >> kBits; });
}
template <int kBits>
FDSPEC_INLINE I16 shift_right_signed(I16 a) {
  return each_lane<I16>([&](int i) { return a.v[i] >> kBits; });
}
// High 32 bits of the unsigned product.
FDSPEC_INLINE I16 multiply_high_unsigned(I16 a, I16 b) {
  return I16::unsigned_lanes(
      a, b, [](uint32_t x, uint32_t y) { return static_cast<uint32_t>(uint64_t{x} * y >> 32); });
}
FDSPEC_INLINE I16 max(I16 a, I16 b) {
  return each_lane<I16>([&](int i) { return max_of(a.v[i], b.v[i]); });
}
FDSPEC_INLINE I16 min(I16 a, I16 b) {
  return each_lane<I16>([&](int i) { return min_of(a.v[i], b.v[i]); });
}
FDSPEC_INLINE M16 operator==(I16 a, I16 b) {
  return each_lane<M16>([&](int i) { return a.v[i] == b.v[i]; });
}
FDSPEC_INLINE M16 operator>(I16 a, I16 b) {
  return each_lane<M16>([&](int i) { return a.v[i] > b.v[i]; });
}
FDSPEC_INLINE M16 operator<(I16 a, I16 b) { return b > a; }
// mask ? a : b
FDSPEC_INLINE I16 select(M16 mask, I16 a, I16 b) {
  return each_lane<I16>([&](int i) { return mask.v[i] ? a.v[i] : b.v[i]; });
}
// Stores the lanes that are set one after another; the rest of the 16 numbers at p is undefined.
FDSPEC_INLINE void store_set(M16 mask, I16 a, int32_t* p) {
  int32_t lanes[kLanes];
  a.store(lanes);
  for (uint32_t bits = mask.bits(); bits != 0; bits &= bits - 1) *p++ = lanes[__builtin_ctz(bits)];
}

FDSPEC_INLINE float fp16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7FFF;
  if (magnitude >= 0x7C00) {  // infinity or NaN (made quiet)
    const uint32_t quiet = magnitude > 0x7C00 ? 0x400000u : 0u;
    return bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FF) << 13 | quiet);
  }
  if (magnitude < 0x400) {  // zero or denormal: an integer times 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return bit_cast<float>(sign | bit_cast<uint32_t>(value));
  }
  return bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

FDSPEC_INLINE uint16_t float_to_bf16(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>((bits | 0x400000u) >> 16);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

struct F16 {
  float v[kLanes];

  static FDSPEC_INLINE F16 zero() { return broadcast(0.0f); }
  static FDSPEC_INLINE F16 broadcast(float x) {
    return each_lane<F16>([=](int) { return x; });
  }
  static FDSPEC_INLINE F16 load(const float* p) { return read_as<F16>(p); }
  // Lanes [0, count) are read, the others are 0; 0 <= count <= 16.
  static FDSPEC_INLINE F16 load_partial(const float* p, int count) {
    return each_lane<F16>([=](int i) { return i < count ? p[i] : 0.0f; });
  }
  static FDSPEC_INLINE F16 load_bf16(const uint16_t* p) {
    return each_lane<F16>([=](int i) { return bf16_to_float(p[i]); });
  }
  static FDSPEC_INLINE F16 load_bf16_partial(const uint16_t* p, int count) {
    return each_lane<F16>([=](int i) { return i < count ? bf16_to_float(p[i]) : 0.0f; });
  }
  // IEEE half precision.
  static FDSPEC_INLINE F16 load_fp16(const uint16_t* p) {
    return each_lane<F16>([=](int i) { return fp16_to_float(p[i]); });
  }
  // base[index[lane]]
  static FDSPEC_INLINE F16 gather(const float* base, I16 index) {
    return each_lane<F16>([&](int i) { return base[index.v[i]]; });
  }
  FDSPEC_INLINE void store(float* p) const { std::memcpy(p, v, sizeof(v)); }
  FDSPEC_INLINE void store_partial(float* p, int count) const {
    for (int i = 0; i < count; ++i) p[i] = v[i];
  }
  // Rounded to nearest even; a NaN stays a NaN.
  FDSPEC_INLINE void store_bf16(uint16_t* p) const { store_bf16_partial(p, kLanes); }
  FDSPEC_INLINE void store_bf16_partial(uint16_t* p, int count) const {
    for (int i = 0; i < count; ++i) p[i] = float_to_bf16(v[i]);
  }
  // Rounded to nearest even; out of range gives INT32_MIN.
  FDSPEC_INLINE I16 to_int() const {
    return each_lane<I16>([&](int i) {
      const bool in_range = v[i] >= -2147483648.0f && v[i] < 2147483648.0f;
      return in_range ? static_cast<int32_t>(std::lrint(v[i])) : INT32_MIN;
    });
  }
  FDSPEC_INLINE I16 as_int_bits() const { return bit_cast<I16>(*this); }

  // ((l0+l8)+(l4+l12)) + ((l2+l10)+(l6+l14)) + ... : lane i takes lane i+8, then i+4, i+2, i+1.
  FDSPEC_INLINE float reduce_add() const {
    F16 sum = *this;
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) sum.v[i] += sum.v[i + half];
    }
    return sum.v[0];
  }
  FDSPEC_INLINE float reduce_max() const {
    F16 top = *this;
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) {
        top.v[i] = top.v[i] > top.v[i + half] ? top.v[i] : top.v[i + half];
      }
    }
    return top.v[0];
  }

  friend FDSPEC_INLINE F16 operator+(F16 a, F16 b) {
    return each_lane<F16>([&](int i) { return a.v[i] + b.v[i]; });
  }
  friend FDSPEC_INLINE F16 operator-(F16 a, F16 b) {
    return each_lane<F16>([&](int i) { return a.v[i] - b.v[i]; });
  }
  friend FDSPEC_INLINE F16 operator*(F16 a, F16 b) {
    return each_lane<F16>([&](int i) { return a.v[i] * b.v[i]; });
  }
  friend FDSPEC_INLINE F16 operator/(F16 a, F16 b) {
    return each_lane<F16>([&](int i) { return a.v[i] / b.v[i]; });
  }
};

FDSPEC_INLINE F16 I16::to_float() const {
  return each_lane<F16>([&](int i) { return static_cast<float>(v[i]); });
}
FDSPEC_INLINE F16 I16::as_float_bits() const { return bit_cast<F16>(*this); }

// a * b + c and c - a * b, rounded once.
FDSPEC_INLINE F16 fma(F16 a, F16 b, F16 c) {
  return each_lane<F16>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
FDSPEC_INLINE F16 fnma(F16 a, F16 b, F16 c) {
  return each_lane<F16>([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
}
FDSPEC_INLINE F16 max(F16 a, F16 b) {
  return each_lane<F16>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
FDSPEC_INLINE F16 min(F16 a, F16 b) {
  return each_lane<F16>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
FDSPEC_INLINE F16 sqrt(F16 a) {
  return each_lane<F16>([&](int i) { return __builtin_sqrtf(a.v[i]); });
}
FDSPEC_INLINE F16 abs(F16 a) {
  return each_lane<F16>([&](int i) { return __builtin_fabsf(a.v[i]); });
}
// Comparisons with a NaN are false.
FDSPEC_INLINE M16 operator==(F16 a, F16 b) {
  return each_lane<M16>([&](int i) { return a.v[i] == b.v[i]; });
}
FDSPEC_INLINE M16 operator>(F16 a, F16 b) {
  return each_lane<M16>([&](int i) { return a.v[i] > b.v[i]; });
}
FDSPEC_INLINE M16 operator<(F16 a, F16 b) { return b > a; }
FDSPEC_INLINE M16 operator>=(F16 a, F16 b) {
  return each_lane<M16>([&](int i) { return a.v[i] >= b.v[i]; });
}
FDSPEC_INLINE M16 is_nan(F16 a) {
  return each_lane<M16>([&](int i) { return a.v[i] != a.v[i]; });
}
// mask ? a : b
FDSPEC_INLINE F16 select(M16 mask, F16 a, F16 b) {
  return each_lane<F16>([&](int i) { return mask.v[i] ? a.v[i] : b.v[i]; });
}

struct U8x64 {
  uint8_t v[4 * kLanes];

  static FDSPEC_INLINE U8x64 load(const void* p) { return read_as<U8x64>(p); }
  FDSPEC_INLINE void store(void* p) const { std::memcpy(p, v, sizeof(v)); }
  FDSPEC_INLINE U8x64 low_nibbles() const {
    U8x64 result;
    for (int i = 0; i < 4 * kLanes; ++i) result.v[i] = v[i] & 0x0F;
    return result;
  }
  FDSPEC_INLINE U8x64 high_nibbles() const {
    U8x64 result;
    for (int i = 0; i < 4 * kLanes; ++i) result.v[i] = v[i] >> 4;
    return result;
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

// Sum over up to 32 inputs of (weight - zero_point) * activation, as the float kDotStart + sum,
// where weights are the nibbles 0..15 and activations lie in [-127, 127]. `start` is kDotStartBits
// - zero_point * (sum of activations).
struct NibbleDot {
  I16 total;

  NibbleDot() = default;
  explicit FDSPEC_INLINE NibbleDot(int32_t start) : total(I16::broadcast(start)) {}
  FDSPEC_INLINE void add(U8x64 weights, int32_t four_activations) {
    int8_t activations[4];
    std::memcpy(activations, &four_activations, sizeof(activations));
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int k = 0; k < 4; ++k) total.v[lane] += weights.v[4 * lane + k] * activations[k];
    }
  }
  FDSPEC_INLINE I16 sum() const { return total; }
};

// The same for bytes 0..255 that stand for weights -128..127, whose zero point must be 128.
struct ByteDot : NibbleDot {
  using NibbleDot::NibbleDot;
};

FDSPEC_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace portable
}  // namespace fdspec
