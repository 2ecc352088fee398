// SPDX-License-Identifier: Apache-2.0
// Root-mean-square normalisation: out[r][i] = x[r][i] / sqrt(mean(x[r]^2) + epsilon) * weight[i].
#pragma once

#include "common/dispatch.h"

namespace fdspec {

struct RmsNormArgs {
  const float* x;       // [rows, dim]
  const float* weight;  // [dim]
  float* out;           // [rows, dim]; may be x
  int64_t rows;
  int64_t dim;
  float epsilon;
};

// Slices split the rows.
FDSPEC_DECLARE_KERNEL(rms_norm, RmsNormArgs)

FDSPEC_EXPORT void run_rms_norm(const RmsNormArgs& args);

}  // namespace fdspec
