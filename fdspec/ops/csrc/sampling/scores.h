// SPDX-License-Identifier: Apache-2.0
// A row of logits as the sampling kernels see it, and passes over it.
#pragma once

#include <cmath>
#include <limits>

#include "common/vec.h"
#include "sampling/candidates.h"

namespace fdspec {
namespace FDSPEC_ISA {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kLargestFloat = std::numeric_limits<float>::max();

// A little less than a score or a sum of scores: more than rounding can make of it.
inline float lower(float score) { return score - 1e-5f * (std::fabs(score) + 1.0f); }

// score = logit / temperature. NaN counts as -inf, and +inf as the largest float.
class Scores {
 public:
  Scores(const float* logits, int64_t vocab, float temperature)
      : logits_(logits), vocab_(vocab), temperature_(temperature) {}

  int64_t vocab() const { return vocab_; }

  // Scores of the tokens [token, token + kLanes); -inf past the end.
  FDSPEC_INLINE F16 load(int64_t token) const { return scale(load_logits(token)); }

  FDSPEC_INLINE F16 load_logits(int64_t token) const {
    if (token + kLanes <= vocab_) return F16::load(logits_ + token);
    const int count = static_cast<int>(max_of<int64_t>(0, vocab_ - token));
    return select(M16::first(count), F16::load_partial(logits_ + token, count), splat(-kInfinity));
  }

  FDSPEC_INLINE F16 scale(F16 logits) const {
    F16 score = max(logits, splat(-kInfinity));
    if (temperature_ != 1.0f) score = score / splat(temperature_);
    return min(score, splat(kLargestFloat));
  }

  float score_of(int64_t token) const {
    float score[kLanes];
    scale(splat(logits_[token])).store(score);
    return score[0];
  }

  // A logit below this one has a score below `score`, whatever the rounding; it may be a bit too
  // low. It spares the division for most tokens.
  float logit_below(float score) const {
    if (!(score > -kInfinity)) return -kInfinity;
    return lower(score) * temperature_;
  }

  float largest() const {
    F16 tops[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
    for (int64_t token = 0; token < vocab_; token += 4 * kLanes) {
      for (int i = 0; i < 4; ++i) tops[i] = max(load_logits(token + i * kLanes), tops[i]);
    }
    // Division keeps the order, so the largest logit has the largest score.
    const F16 top = splat(max(max(tops[0], tops[1]), max(tops[2], tops[3])).reduce_max());
    float score[kLanes];
    scale(top).store(score);
    return score[0];
  }

  // Lowest token with this score, which must occur.
  int64_t find(float score) const {
    int64_t token = 0;
    while (!(load(token) == splat(score)).any()) token += kLanes;
    while (score_of(token) != score) ++token;
    return token;
  }

 private:
  const float* logits_;
  int64_t vocab_;
  float temperature_;
};

// exp(score - top) in units of 2^-kWeightBits, as high * 2^20 + low.
struct WeightParts {
  I16 high;
  I16 low;
};

FDSPEC_INLINE WeightParts weight_of(F16 scores, float top) {
  const F16 scaled = exp(scores - splat(top)) * splat(0x1p20f);
  const I16 high = scaled.to_int();
  return {high, ((scaled - high.to_float()) * splat(0x1p20f)).to_int()};
}

FDSPEC_INLINE int64_t join_weight(int64_t high, int64_t low) {
  static_assert(kWeightBits == 40);
  return high * (int64_t{1} << 20) + low;
}

// Sum of the weights of all tokens.
inline int64_t total_weight(const Scores& scores, float top) {
  constexpr int64_t kFlush = 1024;  // so many weights of 2^20 fit an int32 lane
  int64_t high = 0, low = 0;
  for (int64_t begin = 0; begin < scores.vocab(); begin += kFlush * kLanes) {
    const int64_t end = min_of(scores.vocab(), begin + kFlush * kLanes);
    I16 high_sum = I16::zero(), low_sum = I16::zero();
    for (int64_t token = begin; token < end; token += kLanes) {
      const WeightParts weight = weight_of(scores.load(token), top);
      high_sum = high_sum + weight.high;
      low_sum = low_sum + weight.low;
    }
    int32_t high_lanes[kLanes], low_lanes[kLanes];
    high_sum.store(high_lanes);
    low_sum.store(low_lanes);
    for (int i = 0; i < kLanes; ++i) {
      high += high_lanes[i];
      low += low_lanes[i];
    }
  }
  return join_weight(high, low);
}

// Weights of the candidates; returns their sum.
inline int64_t set_weights(Candidate* candidates, int64_t count, float top) {
  int64_t sum = 0;
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    const int width = static_cast<int>(min_of<int64_t>(kLanes, count - begin));
    float scores[kLanes] = {};
    for (int i = 0; i < width; ++i) scores[i] = candidates[begin + i].score;
    const WeightParts weight = weight_of(F16::load(scores), top);
    int32_t high[kLanes], low[kLanes];
    weight.high.store(high);
    weight.low.store(low);
    for (int i = 0; i < width; ++i) {
      candidates[begin + i].weight = join_weight(high[i], low[i]);
      sum += candidates[begin + i].weight;
    }
  }
  return sum;
}

// Appends the tokens of a vector whose bits are set.
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
  const F16 lowest_logit = splat(scores.logit_below(lowest));
  int64_t count = 0;
  for (int64_t token = 0; token < scores.vocab(); token += kLanes) {
    const F16 logits = scores.load_logits(token);
    if (!(logits >= lowest_logit).any()) continue;
    const F16 values = scores.scale(logits);
    const M16 passed = (values >= splat(lowest)) & (values > splat(-kInfinity));
    count = push_candidates(values, token, passed.bits(), candidates, count);
  }
  return count;
}

// The k first tokens of the order, in any order; fewer if fewer are above -inf. Needs room for
// all tokens.
inline int64_t collect_best(const Scores& scores, int64_t k, Candidate* candidates) {
  // When so many have gathered, all but the k best are dropped: constant time for each.
  const int64_t limit = 2 * k + 256;
  int64_t count = 0;
  float lowest = -kInfinity;  // only a higher score can still be among the k best
  F16 lowest_logit = splat(-kInfinity);
  for (int64_t token = 0; token < scores.vocab(); token += kLanes) {
    const F16 logits = scores.load_logits(token);
    if (!(logits >= lowest_logit).any()) continue;
    const F16 values = scores.scale(logits);
    const uint32_t bits = (values > splat(lowest)).bits();
    if (bits == 0) continue;
    count = push_candidates(values, token, bits, candidates, count);
    if (count >= limit) {
      select_best(candidates, count, k);
      count = k;
      lowest = candidates[k - 1].score;
      lowest_logit = splat(scores.logit_below(lowest));
    }
  }
  if (count > k) select_best(candidates, count, k);
  return min_of(count, k);
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
