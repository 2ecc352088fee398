// SPDX-License-Identifier: Apache-2.0
// Instruction set levels: which exist, which the processor has, which one is in use.
// Kernels never ask: a launcher picks the kernel of the current level (dispatch.h).
#pragma once

#if defined(__x86_64__)
#define FDSPEC_X86 1
#else
#define FDSPEC_X86 0
#endif

#define FDSPEC_EXPORT __attribute__((visibility("default")))
#define FDSPEC_INLINE inline __attribute__((always_inline))

namespace fdspec {

// All levels give the same bits; they differ in speed only.
// kAmx is kAvx512 with tile products in the kernels that have them (dispatch.h).
enum class Isa : int { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAmx = 3 };
inline constexpr int kNumIsas = 4;

// "portable", "avx2", "avx512" or "amx".
FDSPEC_EXPORT const char* isa_name(Isa isa);

// What the level needs of the processor, for messages.
FDSPEC_EXPORT const char* isa_requirements(Isa isa);

// True if this build has kernels of that level and the processor can run them. Asking for kAmx
// makes Linux give the process the right to use tiles.
FDSPEC_EXPORT bool isa_supported(Isa isa);

// The level in use; the best supported one until set_isa() is called.
FDSPEC_EXPORT Isa current_isa();

// Takes effect at the next op. The caller has checked isa_supported().
FDSPEC_EXPORT void set_isa(Isa isa);

}  // namespace fdspec
