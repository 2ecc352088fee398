// SPDX-License-Identifier: Apache-2.0
#include "common/vec.h"
#include "probe/probe.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

// Independent chains: enough to hide the latency of a multiply-add, few enough for the registers.
constexpr int kChains = FDSPEC_ISA_ID == 2 ? 12 : 4;
constexpr int kVectors = kPeakOperandBytes / 64;

}  // namespace

void int8_peak(const PeakArgs& args, Slice slice) {
  NibbleDot dots[kChains] = {
#if FDSPEC_ISA_ID == 2
      NibbleDot(0), NibbleDot(0), NibbleDot(0), NibbleDot(0),
      NibbleDot(0), NibbleDot(0), NibbleDot(0), NibbleDot(0),
#endif
      NibbleDot(0), NibbleDot(0), NibbleDot(0), NibbleDot(0)};
  const int32_t activations = read_as<int32_t>(args.operands);
  for (int64_t i = 0; i < args.iterations; ++i) {
    // One load for all chains. Its address changes, so that no product is the same twice.
    const U8x64 weights = U8x64::load(args.operands + i % kVectors * 64);
    for (int chain = 0; chain < kChains; ++chain) dots[chain].add(weights, activations + chain);
  }
  I16 total = dots[0].sum();
  for (int chain = 1; chain < kChains; ++chain) total = total ^ dots[chain].sum();
  total.store(args.sink + slice.index * kLanes);
  args.operations[slice.index] = args.iterations * kChains * 64 * 2;
}

void float_peak(const PeakArgs& args, Slice slice) {
  F16 sums[kChains];
  F16 factors[kChains];
  for (int chain = 0; chain < kChains; ++chain) {
    sums[chain] = F16::zero();
    factors[chain] = F16::broadcast(1.0f / static_cast<float>(chain + 1));
  }
  const F16 x = I16::load(args.operands).to_float();
  for (int64_t i = 0; i < args.iterations; ++i) {
    for (int chain = 0; chain < kChains; ++chain) sums[chain] = fma(x, factors[chain], sums[chain]);
  }
  F16 total = sums[0];
  for (int chain = 1; chain < kChains; ++chain) total = total + sums[chain];
  total.as_int_bits().store(args.sink + slice.index * kLanes);
  args.operations[slice.index] = args.iterations * kChains * kLanes * 2;
}

void bfloat16_peak(const PeakArgs& args, Slice slice) { float_peak(args, slice); }

}  // namespace FDSPEC_ISA
}  // namespace fdspec
