// SPDX-License-Identifier: Apache-2.0
// Passes over a row that gather the few tokens which matter. Vectors without any are told apart by
// one comparison of raw logits.
#pragma once

#include "sampling/scores.h"

namespace fdspec {
namespace FDSPEC_ISA {

// Raw logits and their tokens, packed without a branch until there are enough to fill vectors.
class Packed {
 public:
  FDSPEC_INLINE void push(F16 logits, int64_t token, M16 mask) {
    store_set(mask, logits.as_int_bits(), logit_bits_ + size_);
    store_set(mask, I16::broadcast(static_cast<int32_t>(token)) + I16::iota(), tokens_ + size_);
    size_ += __builtin_popcount(mask.bits());
  }

  // True if another block may not fit.
  FDSPEC_INLINE bool is_full() const { return size_ > kCapacity - kBlock; }

  // Hands all on as use(logits, tokens, count); lanes from `count` on are -inf.
  template <class Use>
  FDSPEC_INLINE void drain(Use use) {
    splat(-kInfinity).as_int_bits().store(logit_bits_ + size_);
    I16::zero().store(tokens_ + size_);
    for (int i = 0; i < size_; i += kLanes) {
      use(I16::load(logit_bits_ + i).as_float_bits(), I16::load(tokens_ + i),
          min_of(kLanes, size_ - i));
    }
    size_ = 0;
  }

 private:
  static constexpr int kCapacity = 2 * kBlock;
  int32_t logit_bits_[kCapacity + kLanes];
  int32_t tokens_[kCapacity + kLanes];
  int size_ = 0;
};

// Puts candidates with their weights one after another.
class Collector {
 public:
  Collector(const Scores& scores, float top, Candidate* candidates)
      : scores_(scores), top_(top), candidates_(candidates) {}

  // The tokens of a block; some are set in its four masks.
  FDSPEC_INLINE void push(const F16 logits[4], const M16 masks[4], int64_t first) {
    for (int i = 0; i < 4; ++i) packed_.push(logits[i], first + i * kLanes, masks[i]);
    if (packed_.is_full()) flush();
  }

  // Returns how many there are in all.
  int64_t flush() {
    packed_.drain([this](F16 logits, I16 tokens, int count) { append(logits, tokens, count); });
    return count_;
  }

 private:
  FDSPEC_INLINE void append(F16 logits, I16 tokens, int count) {
    // Adding 0 turns -0 into +0, which it equals in the order.
    const F16 values = scores_.scale(logits) + F16::zero();
    const WeightParts weight = weight_of(values, top_);
    float score[kLanes];
    int32_t token[kLanes], high[kLanes], low[kLanes];
    values.store(score);
    tokens.store(token);
    weight.high.store(high);
    weight.low.store(low);
    for (int i = 0; i < kLanes; ++i) {
      candidates_[count_ + i] = {score[i], token[i], join_weight(high[i], low[i])};
    }
    count_ += count;
  }

  const Scores& scores_;
  float top_;
  Candidate* candidates_;
  int64_t count_ = 0;
  Packed packed_;
};

FDSPEC_INLINE bool any_of(const M16 masks[4]) {
  return ((masks[0] | masks[1]) | (masks[2] | masks[3])).any();
}

// All tokens with a score of at least `lowest`, a few below it by rounding, never those of -inf;
// with their weights. Needs room for all tokens.
inline int64_t collect_above(const Scores& scores, float lowest, float top, Candidate* candidates) {
  Collector collector(scores, top, candidates);
  const float lowest_logit = max_of(scores.logit_below(lowest), -kLargestFloat);
  for (int64_t first = 0; first < scores.vocab(); first += kBlock) {
    if (scores.is_block_below(first, lowest_logit)) continue;
    F16 logits[4];
    M16 passed[4];
    scores.load_block(first, logits);
    for (int i = 0; i < 4; ++i) passed[i] = logits[i] >= splat(lowest_logit);
    if (any_of(passed)) collector.push(logits, passed, first);
  }
  return collector.flush();
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
  for (int64_t token = 0; token < scores.vocab(); token += kLanes) {
    if (token % kBlock == 0 && scores.is_block_below(token, lowest_logit)) {
      token += kBlock - kLanes;
      continue;
    }
    const F16 logits = scores.load_logits(token);
    if (!(logits >= splat(lowest_logit)).any()) continue;
    const F16 values = scores.scale(logits);
    count = push_candidates(values, token, (values > splat(lowest)).bits(), candidates, count);
    if (count >= limit) {
      select_best(candidates, count, k);
      count = k;
      lowest = candidates[k - 1].score;
      lowest_logit = scores.logit_below(lowest);
    }
  }
  if (count > k) select_best(candidates, count, k);
  return min_of(count, k);
}

// The tokens near the top, and bounds of the weight of the whole row.
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

// Collects the tokens with a score of at least top - distance, some below it by rounding, with
// their weights. All others are weighed together and roughly, which takes a fraction of the time of
// exact weights. `top` is the largest score. Needs room for all tokens.
inline NearTop collect_near(const Scores& scores, float top, float distance,
                            Candidate* candidates) {
  constexpr double kLog2E = 1.4426950408889634;
  // Above -inf, which is never collected.
  const F16 lowest_logit = splat(max_of(scores.logit_below(top - distance), -kLargestFloat));
  const F16 factor = splat(static_cast<float>(kLog2E / scores.temperature()));
  const F16 offset = splat(static_cast<float>(-kLog2E * top));
  F16 rest[4] = {F16::zero(), F16::zero(), F16::zero(), F16::zero()};
  Collector collector(scores, top, candidates);
  for (int64_t first = 0; first < scores.vocab(); first += kBlock) {
    F16 logits[4];
    M16 is_near[4];
    scores.load_block(first, logits);
    for (int i = 0; i < 4; ++i) {
      is_near[i] = logits[i] >= lowest_logit;
      const F16 weight = rough_power_of_two(fma(logits[i], factor, offset));
      rest[i] = rest[i] + select(is_near[i], F16::zero(), weight);
    }
    if (any_of(is_near)) collector.push(logits, is_near, first);
  }
  const int64_t count = collector.flush();
  const double vocab = static_cast<double>(scores.vocab());
  // Relative: the polynomial, the sum of a lane, and scores that are off by roundings of `top`.
  const double error =
      1.2e-4 + (vocab / kLanes + 16.0) * 0x1p-24 + (std::fabs(top) + 200.0) * 0x1p-22;
  const double near = static_cast<double>(measure(candidates, count).weight);
  const double far = ((rest[0] + rest[1]) + (rest[2] + rest[3])).reduce_add() * 0x1p40;
  // Absolute: each weight is rounded to an integer.
  return {count, near + far * (1.0 - error) - vocab, near + far * (1.0 + error) + vocab};
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
