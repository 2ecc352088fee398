// SPDX-License-Identifier: Apache-2.0
// Rows on their way into a product: computed from the rows of the layer before, then quantised
// where the product is one of integers. A row is read and written once.
#pragma once

#include "common/dispatch.h"
#include "linear/quantized_rows.h"

namespace fdspec {

enum class Activation {
  kPlain,       // x
  kNormalized,  // rms_norm(x)
  kGated        // swiglu(x); x is twice as wide
};

struct ActivationArgs {
  Activation activation;
  const float* x;       // [rows, dim], or [rows, 2 * dim] if gated
  const float* weight;  // [dim] of the norm
  float epsilon;
  int64_t rows;
  int64_t dim;
  const int32_t* sources;  // [rows] which row of x each is of, negative: none, nothing is written;
                           // or null: each is of the row with its number
  float* out;              // [rows, dim]; null: quantised
  QuantizeRowsArgs quantize;  // its x, rows and dim are not used
  float* scratch;             // [slices, scratch_stride]; one row of a slice
  int64_t scratch_stride;
};

// Slices split the rows.
FDSPEC_DECLARE_KERNEL(prepare_activations, ActivationArgs)

}  // namespace fdspec
