// SPDX-License-Identifier: Apache-2.0
// From one kernel source to one function for each instruction set. A file `x.kernel.cc` is
// compiled once for each level with FDSPEC_ISA set to portable, avx2 or avx512 and defines
// `void name(const Args&, Slice)` in namespace fdspec::FDSPEC_ISA. A kernel for the level amx is
// declared with FDSPEC_DECLARE_TILE_KERNEL and defined in namespace fdspec::amx by a file
// `x.amx.cc`, which is compiled with FDSPEC_ISA set to avx512 and may use common/tiles.h; kernels
// without one run as avx512 there.
#pragma once

#include "common/isa.h"
#include "common/parallel.h"

namespace fdspec {

template <class Args>
using Kernel = void (*)(const Args&, Slice);

// Declares the kernels called `name` and `name##_kernel()`, which returns the one of the
// current level.
#if FDSPEC_X86
#define FDSPEC_DECLARE_KERNEL_(name, Args, tile_kernel)                                   \
  namespace portable {                                                                    \
  void name(const Args&, Slice);                                                          \
  }                                                                                       \
  namespace avx2 {                                                                        \
  void name(const Args&, Slice);                                                          \
  }                                                                                       \
  namespace avx512 {                                                                      \
  void name(const Args&, Slice);                                                          \
  }                                                                                       \
  FDSPEC_INLINE Kernel<Args> name##_kernel() {                                            \
    constexpr Kernel<Args> kernels[kNumIsas] = {portable::name, avx2::name, avx512::name, \
                                                tile_kernel};                             \
    return kernels[static_cast<int>(current_isa())];                                      \
  }
#define FDSPEC_DECLARE_KERNEL(name, Args) FDSPEC_DECLARE_KERNEL_(name, Args, avx512::name)
#define FDSPEC_DECLARE_TILE_KERNEL(name, Args) \
  namespace amx {                              \
  void name(const Args&, Slice);               \
  }                                            \
  FDSPEC_DECLARE_KERNEL_(name, Args, amx::name)
#else
#define FDSPEC_DECLARE_KERNEL(name, Args) \
  namespace portable {                    \
  void name(const Args&, Slice);          \
  }                                       \
  FDSPEC_INLINE Kernel<Args> name##_kernel() { return portable::name; }
#define FDSPEC_DECLARE_TILE_KERNEL FDSPEC_DECLARE_KERNEL
#endif

// Runs a kernel over num_slices threads.
template <class Args>
void launch(Kernel<Args> kernel, const Args& args, int num_slices) {
  parallel(num_slices, [kernel, &args](Slice slice) { kernel(args, slice); });
}

}  // namespace fdspec
