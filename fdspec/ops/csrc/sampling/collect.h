// SPDX-License-Identifier: Apache-2.0
// Passes over a row that gather the few tokens which matter. Vectors without any are told apart by
// one comparison of raw logits.
#pragma once

#include "sampling/scores.h"

namespace fdspec {
namespace FDSPEC_ISA {

// Calls visit(logits, token) for the vectors that have a logit of at least `lowest_logit`, in
// order. The visitor may raise the bound as it goes.
template <class Visit>
FDSPEC_INLINE void visit_above(const Scores& scores, const float& lowest_logit, Visit visit) {
  for (int64_t first = 0; first < scores.vocab(); first += kBlock) {
    F16 logits[4];
    M16 passed[4];
    scores.load_block(first, logits);
    for (int i = 0; i < 4; ++i) passed[i] = logits[i] >= splat(lowest_logit);
    if (!((passed[0] | passed[1]) | (passed[2] | passed[3])).any()) continue;
    for (int i = 0; i < 4; ++i) {
      if (passed[i].any()) visit(logits[i], first + i * kLanes);
    }
  }
}

// Appends the tokens of a vector whose bits are set; returns the new count.
FDSPEC_INLINE int64_t push_candidates(F16 scores, int64_t token, uint32_t bits,
                                      Candidate* candidates, int64_t count) {
  float values[kLanes];
  scores.store(values);
  for (; bits != 0; bits &= bits - 1) {
    const int lane = __builtin_ctz(bits);
    // Adding 0 turns -0 into +0, which it equals in the order.
    candidates[count++] = {values[lane] + 0.0f, static_cast<int32_t>(token + lane), 0};
  }
  return count;
}

// All tokens with a score of at least `lowest`; never those of -inf. Needs room for all tokens.
inline int64_t collect_above(const Scores& scores, float lowest, Candidate* candidates) {
  int64_t count = 0;
  visit_above(scores, scores.logit_below(lowest), [&](F16 logits, int64_t token) {
    const F16 values = scores.scale(logits);
    const M16 passed = (values >= splat(lowest)) & (values > splat(-kInfinity));
    count = push_candidates(values, token, passed.bits(), candidates, count);
  });
  return count;
}

// The k first tokens of the order, in any order; fewer if fewer are above -inf. Needs room for
// all tokens.
inline int64_t collect_best(const Scores& scores, const Peak& peak, int64_t k,
                            Candidate* candidates) {
  // When so many have gathered, all but the k best are dropped: constant time for each.
  const int64_t limit = 2 * k + 256;
  int64_t count = 0;
  float lowest = -kInfinity;  // only a higher score can still be among the k best
  if (k <= kBlock) {
    // At least k tokens reach the k-th largest of the tops, which belong to different tokens.
    float tops[kBlock];
    for (int i = 0; i < 4; ++i) scores.scale(peak.tops[i]).store(tops + i * kLanes);
    lowest = lower(select_largest(tops, kBlock, k));
  }
  float lowest_logit = scores.logit_below(lowest);
  visit_above(scores, lowest_logit, [&](F16 logits, int64_t token) {
    const F16 values = scores.scale(logits);
    const uint32_t bits = (values > splat(lowest)).bits();
    count = push_candidates(values, token, bits, candidates, count);
    if (count >= limit) {
      select_best(candidates, count, k);
      count = k;
      lowest = candidates[k - 1].score;
      lowest_logit = scores.logit_below(lowest);
    }
  });
  if (count > k) select_best(candidates, count, k);
  return min_of(count, k);
}

// The tokens near the top, weighed, and bounds of the weight of the whole row.
struct NearTop {
  int64_t count;
  double least_total;
  double most_total;
};

// 2^t for t <= 0 within 1.2e-4 of its value; below t = -120 up to 2^-120.
FDSPEC_INLINE F16 rough_power_of_two(F16 t) {
  // Adding the constant rounds to an integer, which the lowest bits of the sum then hold.
  const F16 shifted = max(t, splat(-120.0f)) + splat(0x1.8p23f);
  const F16 r = max(t, splat(-120.0f)) - (shifted - splat(0x1.8p23f));
  F16 p = fma(r, splat(0.0551716f), splat(0.2426111f));
  p = fma(p, r, splat(0.6932610f));
  p = fma(p, r, splat(0.9999281f));
  return (p.as_int_bits() + shift_left<23>(shifted.as_int_bits())).as_float_bits();
}

// Collects the tokens up to `distance` below the largest score, `top`, and whatever passes for
// that by rounding; sets their weights. The others are weighed together and roughly, which takes a
// fraction of the time of exact weights.
inline NearTop collect_near(const Scores& scores, float top, float distance,
                            Candidate* candidates) {
  constexpr double kLog2E = 1.4426950408889634;
  // Above -inf, which is never collected.
  const float lowest_logit = max_of(scores.logit_below(top - distance), -kLargestFloat);
  const F16 factor = splat(static_cast<float>(kLog2E / scores.temperature()));
  const F16 offset = splat(static_cast<float>(-kLog2E * top));
  int64_t count = 0;
  F16 rest[4] = {F16::zero(), F16::zero(), F16::zero(), F16::zero()};
  for (int64_t first = 0; first < scores.vocab(); first += kBlock) {
    F16 logits[4];
    M16 is_near[4];
    scores.load_block(first, logits);
    for (int i = 0; i < 4; ++i) {
      is_near[i] = logits[i] >= splat(lowest_logit);
      const F16 weight = rough_power_of_two(fma(logits[i], factor, offset));
      rest[i] = rest[i] + select(is_near[i], F16::zero(), weight);
    }
    if (!((is_near[0] | is_near[1]) | (is_near[2] | is_near[3])).any()) continue;
    for (int i = 0; i < 4; ++i) {
      count = push_candidates(scores.scale(logits[i]), first + i * kLanes, is_near[i].bits(),
                              candidates, count);
    }
  }
  const double vocab = static_cast<double>(scores.vocab());
  // Relative: the polynomial, the sum of a lane, and scores that are off by roundings of `top`.
  const double error =
      1.2e-4 + (vocab / kLanes + 16.0) * 0x1p-24 + (std::fabs(top) + 200.0) * 0x1p-22;
  const double near = static_cast<double>(set_weights(candidates, count, top));
  const double far =
      static_cast<double>(((rest[0] + rest[1]) + (rest[2] + rest[3])).reduce_add()) * 0x1p40;
  // Absolute: each weight is rounded to an integer.
  return {count, near + far * (1.0 - error) - vocab, near + far * (1.0 + error) + vocab};
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
