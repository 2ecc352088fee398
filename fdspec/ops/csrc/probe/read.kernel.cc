// SPDX-License-Identifier: Apache-2.0
#include "common/vec.h"
#include "probe/probe.h"

namespace fdspec {
namespace FDSPEC_ISA {

void read_memory(const ReadArgs& args, Slice slice) {
  constexpr int kUnroll = 4;
  const Range range = slice.share(args.vectors);
  I16 sum[kUnroll] = {I16::zero(), I16::zero(), I16::zero(), I16::zero()};
  for (int64_t pass = 0; pass < args.passes; ++pass) {
    // Each pass reads anew: the compiler must not know that memory stays as it is.
    asm volatile("" ::: "memory");
    int64_t vector = range.begin;
    for (; vector + kUnroll <= range.end; vector += kUnroll) {
      for (int i = 0; i < kUnroll; ++i) {
        sum[i] = sum[i] ^ I16::load(args.data + (vector + i) * 64);
      }
    }
    for (; vector < range.end; ++vector) sum[0] = sum[0] ^ I16::load(args.data + vector * 64);
  }
  ((sum[0] ^ sum[1]) ^ (sum[2] ^ sum[3])).store(args.sink + slice.index * kLanes);
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
