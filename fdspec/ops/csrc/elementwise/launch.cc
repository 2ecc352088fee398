// SPDX-License-Identifier: Apache-2.0
// How many threads the row-wise ops are worth. Waking one costs about as much as these ops need
// for some ten thousand values.
#include "elementwise/rms_norm.h"

namespace fdspec {
namespace {

constexpr int64_t kMinValuesPerSlice = 8192;

}  // namespace

void run_rms_norm(const RmsNormArgs& args) {
  launch(rms_norm_kernel(), args, slices_for(args.rows * args.dim, kMinValuesPerSlice));
}

}  // namespace fdspec
