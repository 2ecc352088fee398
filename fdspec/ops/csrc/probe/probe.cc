// SPDX-License-Identifier: Apache-2.0
#include "probe/probe.h"

#include <cstddef>
#include <numeric>
#include <vector>

namespace fdspec {
namespace {

constexpr int kSinkValues = 16;

int64_t run_peak(Kernel<PeakArgs> kernel, int64_t iterations) {
  alignas(64) uint8_t operands[kPeakOperandBytes];
  for (int i = 0; i < kPeakOperandBytes; ++i) operands[i] = static_cast<uint8_t>(i % 15);
  const int slices = num_threads();
  std::vector<int64_t> operations(static_cast<size_t>(slices));
  std::vector<int32_t> sink(static_cast<size_t>(slices * kSinkValues));
  launch(kernel, PeakArgs{operands, iterations, operations.data(), sink.data()}, slices);
  return std::accumulate(operations.begin(), operations.end(), int64_t{0});
}

}  // namespace

int32_t run_read_memory(const uint8_t* data, int64_t num_bytes, int64_t passes) {
  const int slices = num_threads();
  std::vector<int32_t> sink(static_cast<size_t>(slices * kSinkValues));
  launch(read_memory_kernel(), ReadArgs{data, num_bytes / 64, passes, sink.data()}, slices);
  return std::accumulate(sink.begin(), sink.end(), 0, [](int32_t a, int32_t b) { return a ^ b; });
}

int64_t run_int8_peak(int64_t iterations) { return run_peak(int8_peak_kernel(), iterations); }

int64_t run_float_peak(int64_t iterations) { return run_peak(float_peak_kernel(), iterations); }

int64_t run_bfloat16_peak(int64_t iterations) {
  return run_peak(bfloat16_peak_kernel(), iterations);
}

}  // namespace fdspec
