// SPDX-License-Identifier: Apache-2.0
// Elementary functions on F16. Polynomials fitted for this project (Chebyshev interpolation in
// double precision, rounded to float), evaluated by Horner's rule with fma.
#pragma once

#include <limits>

#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

FDSPEC_INLINE F16 splat(float x) { return F16::broadcast(x); }

// 2^n for integers -126 <= n <= 127.
FDSPEC_INLINE F16 power_of_two(I16 n) {
  return shift_left<23>(n + I16::broadcast(127)).as_float_bits();
}

// e^x within 1.5 units in the last place. Below -87.34 the result is 0 (denormals are flushed),
// above 88.73 infinity; exp(-inf) = 0; a NaN stays a NaN.
FDSPEC_INLINE F16 exp(F16 x) {
  // The constant comes first: min and max then hand a NaN on.
  x = min(splat(89.0f), max(splat(-104.0f), x));
  const I16 n = (x * splat(1.44269504f)).to_int();
  const F16 whole = n.to_float();
  // ln 2 in two parts; the first has 9 trailing zero bits, so whole * part is exact.
  F16 r = fnma(whole, splat(0.693145752f), x);
  r = fnma(whole, splat(1.42860677e-6f), r);
  F16 p = splat(0.0013934545f);
  p = fma(p, r, splat(0.00836377684f));
  p = fma(p, r, splat(0.0416664556f));
  p = fma(p, r, splat(0.166665733f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r * r, r) + splat(1.0f);
  // In two factors, as 2^n may overflow where e^x does not.
  const I16 half = shift_right_signed<1>(n);
  return p * power_of_two(half) * power_of_two(n - half);
}

// 2^x for x <= 0 within 3e-6 of itself, and exactly 1 at 0; for weights, which are rounded to
// bfloat16 afterwards. Below -126 the result is a denormal or 0, which count as 0; a NaN that
// arithmetic made stays a NaN.
FDSPEC_INLINE F16 exp2_of_negative(F16 x) {
  // Adding it rounds to an integer, which then stands in the sum's low bits.
  const F16 rounder = splat(12582912.0f);
  x = max(splat(-127.0f), x);
  const F16 sum = x + rounder;
  const F16 f = x - (sum - rounder);
  F16 p = splat(0.009582853f);
  p = fma(p, f, splat(0.055906426f));
  p = fma(p, f, splat(0.24024099f));
  p = fma(p, f, splat(0.693124175f));
  p = fma(p, f, splat(1.0f));
  return (p.as_int_bits() + shift_left<23>(sum.as_int_bits())).as_float_bits();
}

// Natural logarithm within 1.5 units in the last place. log(0) = -inf (denormals count as 0),
// log(inf) = inf; negative numbers and NaN give NaN.
FDSPEC_INLINE F16 log(F16 x) {
  // x = 2^e * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
  const I16 sqrt_half = I16::broadcast(0x3F3504F3);
  const I16 bits = x.as_int_bits() - sqrt_half;
  const I16 e = shift_right_signed<23>(bits);
  const F16 m = ((bits & I16::broadcast(0x007FFFFF)) + sqrt_half).as_float_bits();
  const F16 f = m - splat(1.0f);
  F16 p = splat(0.071601741f);
  p = fma(p, f, splat(-0.115867257f));
  p = fma(p, f, splat(0.116647437f));
  p = fma(p, f, splat(-0.124091893f));
  p = fma(p, f, splat(0.142494589f));
  p = fma(p, f, splat(-0.166685432f));
  p = fma(p, f, splat(0.200007215f));
  p = fma(p, f, splat(-0.249999881f));
  p = fma(p, f, splat(0.333333313f));
  const F16 square = f * f;
  const F16 whole = e.to_float();
  F16 tail = fma(whole, splat(1.42860677e-6f), p * (square * f));
  tail = fma(square, splat(-0.5f), tail);
  const F16 result = fma(whole, splat(0.693145752f), f + tail);

  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const F16 special = select(x == F16::zero(), splat(-kInfinity),
                             select(x == splat(kInfinity), splat(kInfinity), splat(kNan)));
  return select((x > F16::zero()) & (x < splat(kInfinity)), result, special);
}

// x / (1 + e^-x)
FDSPEC_INLINE F16 silu(F16 x) { return x / (splat(1.0f) + exp(F16::zero() - x)); }

}  // namespace FDSPEC_ISA
}  // namespace fdspec
