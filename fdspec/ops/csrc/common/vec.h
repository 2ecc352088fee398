// SPDX-License-Identifier: Apache-2.0
// The small SIMD vocabulary that kernels are written in, and nothing else. Everything lives in
// namespace fdspec::FDSPEC_ISA, so code of different instruction sets can never be mixed up by
// the linker; only kernel files (*.kernel.cc) may include this header.
//
//   F16   16 floats              I16   16 int32            M16   16 booleans
//   U8x64 64 bytes: 4 consecutive inputs (bytes of a lane) of 16 channels (lanes)
//   NibbleFloats                 floats of the nibbles 0..15, less a zero point
//   NibbleDot, ByteDot           exact integer dot products over a block of 32 inputs
//
// Every operation is exact or correctly rounded (IEEE, nearest even, denormals as zero), or built
// from such operations in a fixed order; so all levels give the same bits. Written for every
// level: a header vec_<isa>.h. Written once, on top of those: vec_math.h (exp, log, silu).
//
// max(a, b) is a > b ? a : b and min(a, b) is a < b ? a : b, per lane: with a NaN in either
// argument the result is b.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/isa.h"

#define FDSPEC_ISA_ID_portable 0
#define FDSPEC_ISA_ID_avx2 1
#define FDSPEC_ISA_ID_avx512 2
#define FDSPEC_CONCAT_(a, b) a##b
#define FDSPEC_CONCAT(a, b) FDSPEC_CONCAT_(a, b)
#define FDSPEC_ISA_ID FDSPEC_CONCAT(FDSPEC_ISA_ID_, FDSPEC_ISA)

namespace fdspec {
namespace FDSPEC_ISA {

inline constexpr int kLanes = 16;

// Dot products become floats without an instruction for it: they start from the bits of this
// number, and in its last 22 bits their sum is that of the float kDotStart + dot.
inline constexpr float kDotStart = 0x1.8p23f;
inline constexpr int32_t kDotStartBits = 0x4B400000;

template <class T>
FDSPEC_INLINE T min_of(T a, T b) {
  return b < a ? b : a;
}
template <class T>
FDSPEC_INLINE T max_of(T a, T b) {
  return a < b ? b : a;
}

// Reads a value of type To from any address.
template <class To>
FDSPEC_INLINE To read_as(const void* address) {
  To value;
  std::memcpy(&value, address, sizeof(To));
  return value;
}

template <class To, class From>
FDSPEC_INLINE To bit_cast(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

// Scalar bfloat16, for tails and tables; vectors have F16::load_bf16 and store_bf16.
FDSPEC_INLINE float bf16_to_float(uint16_t value) {
  return bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec

#if FDSPEC_ISA_ID == 2
#include "common/vec_avx512.h"
#elif FDSPEC_ISA_ID == 1
#include "common/vec_avx2.h"
#else
#include "common/vec_portable.h"
#endif

#include "common/vec_math.h"
