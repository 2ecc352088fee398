// SPDX-License-Identifier: Apache-2.0
// out = x * weight^T [+ bias] [+ residual] for a weight in panels (packed_weight.h).
//
// A row's result depends on that row and the weight alone: inputs are taken in order, in float
// with fma; the blocks of an integer product are exact and added in order. How many rows share a
// weight register changes the speed only.
#pragma once

#include "common/dispatch.h"
#include "linear/packed_weight.h"
#include "linear/quantized_rows.h"

namespace fdspec {

struct LinearArgs {
  PackedLayout layout;
  // True: codes are turned into floats and activations stay as they are (wint4_a16, wint8_a16).
  bool float_activations;
  const uint8_t* weight;  // layout.total_bytes()
  const float* x;         // [rows, in_features]
  const float* bias;      // [out_features] or null
  const float* residual;  // [rows, out_features] or null; may be out
  float* out;             // [rows, out_features]
  int64_t rows;
};

// One phase of a product; slices split the panels.
struct IntegerLinearArgs {
  LinearArgs linear;
  const QuantizedBlock* x;
};
FDSPEC_DECLARE_KERNEL(integer_linear, IntegerLinearArgs)

// Panels that share a load of the activations, at most; a slice keeps partial sums of
// [rows][kMaxFloatPanels][16] floats.
inline constexpr int kMaxFloatPanels = 4;
struct FloatLinearArgs {
  LinearArgs linear;
  float* sums;  // [slices][sums_per_slice]
  int64_t sums_per_slice;
};
FDSPEC_DECLARE_KERNEL(float_linear, FloatLinearArgs)

// Threads that run_linear() uses, and the bytes of 64-byte aligned workspace it needs for that.
FDSPEC_EXPORT int linear_slices(const LinearArgs& args);
FDSPEC_EXPORT int64_t linear_workspace_bytes(const LinearArgs& args, int num_slices);

FDSPEC_EXPORT void run_linear(const LinearArgs& args, int num_slices, void* workspace);

}  // namespace fdspec
