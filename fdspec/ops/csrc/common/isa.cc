// SPDX-License-Identifier: Apache-2.0
#include "common/isa.h"

#include <atomic>

#if FDSPEC_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fdspec {
namespace {

#if FDSPEC_X86
// Tiles have 8 KiB of state, which Linux saves for processes that asked for it.
bool may_use_tiles() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;  // leaf 7, edx
  constexpr long kRequestPermission = 0x1023, kTileData = 18;               // asm/prctl.h
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kNeeded = kBf16 | kTile | kInt8;
  return (edx & kNeeded) == kNeeded && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

Isa best_isa() {
  if (isa_supported(Isa::kAmx)) return Isa::kAmx;
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
    case Isa::kAmx:
      return "amx";
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
    case Isa::kAmx:
      return "AVX-512 F, BW, VL, DQ, VNNI and BF16, AMX-INT8 and AMX-BF16, and Linux >= 5.16";
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
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
  if (isa == Isa::kAvx512) return avx512;
  if (isa == Isa::kAmx) {
    static const bool has_tiles = may_use_tiles();
    return avx512 && __builtin_cpu_supports("avx512bf16") && has_tiles;
  }
#endif
  return isa == Isa::kPortable;
}

Isa current_isa() { return selected().load(std::memory_order_relaxed); }

void set_isa(Isa isa) { selected().store(isa, std::memory_order_relaxed); }

}  // namespace fdspec
