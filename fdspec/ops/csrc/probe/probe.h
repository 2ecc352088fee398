// SPDX-License-Identifier: Apache-2.0
// What the machine can do, so that benchmarks can say how close a kernel comes to it: loops that
// only read memory, and loops that only multiply in registers. No model uses them.
#pragma once

#include "common/dispatch.h"

namespace fdspec {

// Reads `vectors` times 64 bytes, `passes` times over; slices split the vectors.
struct ReadArgs {
  const uint8_t* data;  // [vectors * 64]
  int64_t vectors;
  int64_t passes;
  int32_t* sink;  // [slices][16], what was read, combined; keeps the loop from being left out
};
FDSPEC_DECLARE_KERNEL(read_memory, ReadArgs)

// Every slice multiplies and adds `iterations` times in several independent chains.
struct PeakArgs {
  const uint8_t* operands;  // [kPeakOperandBytes], bytes 0..15; stays in the nearest cache
  int64_t iterations;
  int64_t* operations;  // [slices], multiplications plus additions of one slice
  int32_t* sink;        // [slices][16], as in ReadArgs
};
inline constexpr int kPeakOperandBytes = 4096;

// The product of the integer formats: nibbles times signed bytes, sums in int32.
FDSPEC_DECLARE_TILE_KERNEL(int8_peak, PeakArgs)
// Multiply-add of float32 vectors; there are no float32 tiles.
FDSPEC_DECLARE_KERNEL(float_peak, PeakArgs)
// Products of bfloat16 with sums in float32: tiles at the level amx, float32 vectors elsewhere.
FDSPEC_DECLARE_TILE_KERNEL(bfloat16_peak, PeakArgs)

// Reads an array on all threads; returns what was read, combined.
FDSPEC_EXPORT int32_t run_read_memory(const uint8_t* data, int64_t num_bytes, int64_t passes);

// Each returns the operations done on all threads.
FDSPEC_EXPORT int64_t run_int8_peak(int64_t iterations);
FDSPEC_EXPORT int64_t run_float_peak(int64_t iterations);
FDSPEC_EXPORT int64_t run_bfloat16_peak(int64_t iterations);

}  // namespace fdspec
