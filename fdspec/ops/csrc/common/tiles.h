// SPDX-License-Identifier: Apache-2.0
// AMX tiles: eight registers of up to 16 rows of 64 bytes. Only x.amx.cc files may include this.
//
// A product adds to tile C, for each of its rows m and columns n, the sum over k of A[m][k] times
// B[k][n]. B holds 4 bytes (or 2 bfloat16) of consecutive k of one column beside each other, as
// panels of integer weights do.
//
//   signed x unsigned bytes   exact in int32
//   bfloat16                  even and odd k are summed apart, each a chain of fma in fp32 from 0
//                             in ascending order, denormals as zero; then C + (even + odd)
//
// GCC's own intrinsics do not tell the compiler which memory they read and write; these do.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace fdspec {
namespace amx {

inline constexpr int kNumTiles = 8;
inline constexpr int kTileBytes = 1024;

// Shapes of the eight tiles, in the processor's format.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  FDSPEC_INLINE void set(int tile, int num_rows, int bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};

// Gives this thread's tiles their shapes for the lifetime of the object; their contents are zero.
class TileScope {
 public:
  explicit FDSPEC_INLINE TileScope(const TileShapes& shapes) {
    asm volatile("ldtilecfg %0" ::"m"(shapes));
  }
  FDSPEC_INLINE ~TileScope() { asm volatile("tilerelease" ::: "memory"); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Reads rows that are `stride` bytes apart.
template <int kTile>
FDSPEC_INLINE void load_tile(const void* base, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(base), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
FDSPEC_INLINE void store_tile(void* base, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(base), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
FDSPEC_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

// C += A * B, bytes: A signed, B unsigned.
template <int kC, int kA, int kB>
FDSPEC_INLINE void multiply_signed_unsigned() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

// C += A * B, bfloat16 with sums in fp32.
template <int kC, int kA, int kB>
FDSPEC_INLINE void multiply_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

}  // namespace amx
}  // namespace fdspec
