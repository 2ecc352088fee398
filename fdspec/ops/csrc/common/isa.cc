// SPDX-License-Identifier: Apache-2.0
#include "common/isa.h"

#include <atomic>

namespace fdspec {
namespace {

Isa best_isa() {
  if (isa_supported(Isa::kAvx512)) return Isa::kAvx512;
  if (isa_supported(Isa::kAvx2)) return Isa::kAvx2;
  return Isa::kPortable;
}

std::atomic<Isa>& selected() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    default:
      return "portable";
  }
}

const char* isa_requirements(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return "AVX-512 F, BW, VL, DQ and VNNI";
    case Isa::kAvx2:
      return "AVX2, FMA and F16C";
    default:
      return "nothing";
  }
}

bool isa_supported(Isa isa) {
#if FDSPEC_X86
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (isa == Isa::kAvx2) return avx2;
  if (isa == Isa::kAvx512) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
  }
#endif
  return isa == Isa::kPortable;
}

Isa current_isa() { return selected().load(std::memory_order_relaxed); }

void set_isa(Isa isa) { selected().store(isa, std::memory_order_relaxed); }

}  // namespace fdspec
