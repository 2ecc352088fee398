// SPDX-License-Identifier: Apache-2.0
// Scalar conversions between float and the 16-bit formats, for packing; kernels have vec.h.
// They work on bits, so they give the same in every floating-point mode.
#pragma once

#include <cstdint>

namespace fdspec {

// IEEE half precision.
float half_to_float(uint16_t half);

// Rounded to nearest even; overflow gives infinity, a NaN a quiet NaN.
uint16_t float_to_half(float value);

float bf16_to_float(uint16_t value);

// Rounded to nearest even; a NaN stays a NaN.
uint16_t float_to_bf16(float value);

}  // namespace fdspec
