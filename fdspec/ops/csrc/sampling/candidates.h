// SPDX-License-Identifier: Apache-2.0
// Tokens that may be chosen, and the selections that need their order. An order is: higher score
// first, ties by lower token. Compiled once: kernels of all instruction sets call the same code.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace fdspec {

// Weights are probabilities in units of 2^-40 of the most likely token's. As integers, their sums
// do not depend on the order of addition.
inline constexpr int kWeightBits = 40;

struct Candidate {
  float score;
  int32_t token;
  int64_t weight;
};

// Moves the `keep` first candidates of the order to the front, the last of them to position
// keep - 1. 1 <= keep <= count. Linear in count.
FDSPEC_EXPORT void select_best(Candidate* candidates, int64_t count, int64_t keep);

// Moves the shortest prefix of the order whose weights add up to at least `mass` to the front and
// returns its length; `count` if even all weights are less. `top` is the largest score.
// Linear in count.
FDSPEC_EXPORT int64_t select_mass(Candidate* candidates, int64_t count, double mass, float top);

// What the candidates weigh that have a score of at least `lowest`.
FDSPEC_EXPORT int64_t weight_above(const Candidate* candidates, int64_t count, float lowest);

// What the candidates weigh that come before one of them in the order.
FDSPEC_EXPORT int64_t weight_before(const Candidate* candidates, int64_t count,
                                    const Candidate& last);

// Moves these to the front; returns how many they are.
FDSPEC_EXPORT int64_t select_before(Candidate* candidates, int64_t count, Candidate last);

// Sum of weights and lowest score; +inf of none.
struct Measure {
  int64_t weight;
  float lowest;
};
FDSPEC_EXPORT Measure measure(const Candidate* candidates, int64_t count);

// The keep-th largest of some values, none of them NaN; changes their order.
FDSPEC_EXPORT float select_largest(float* values, int64_t count, int64_t keep);

FDSPEC_EXPORT void sort_candidates(Candidate* candidates, int64_t count);

}  // namespace fdspec
