// SPDX-License-Identifier: Apache-2.0
// How many threads the row-wise ops are worth. Waking one costs about as much as these ops need
// for some thousand values.
#include "elementwise/rms_norm.h"
#include "elementwise/rope.h"
#include "elementwise/swiglu.h"

namespace fdspec {
namespace {

constexpr int64_t kMinValuesPerSlice = 8192;
// An exponential and a division a value.
constexpr int64_t kMinActivationsPerSlice = 2048;

}  // namespace

void run_rms_norm(const RmsNormArgs& args) {
  launch(rms_norm_kernel(), args, slices_for(args.rows * args.dim, kMinValuesPerSlice));
}

void run_rope(const RopeArgs& query, const RopeArgs& key) {
  const Kernel<RopeArgs> kernel = rope_kernel();
  const int64_t num_values = query.rows * (query.heads + key.heads) * 2 * query.half;
  parallel(slices_for(num_values, kMinValuesPerSlice), [&](Slice slice) {
    kernel(query, slice);
    kernel(key, slice);
  });
}

void run_swiglu(const SwigluArgs& args) {
  launch(swiglu_kernel(), args, slices_for(args.rows * args.dim, kMinActivationsPerSlice));
}

}  // namespace fdspec
