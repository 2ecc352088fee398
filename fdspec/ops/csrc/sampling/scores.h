// SPDX-License-Identifier: Apache-2.0
// A row of logits as the sampling kernels see it, and passes over it.
#pragma once

#include <cmath>
#include <limits>

#include "common/vec.h"
#include "sampling/block_maxima.h"
#include "sampling/candidates.h"

namespace fdspec {
namespace FDSPEC_ISA {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kLargestFloat = std::numeric_limits<float>::max();

// A little less than a score or a sum of scores: more than rounding can make of it.
inline float lower(float score) { return score - 1e-5f * (std::fabs(score) + 1.0f); }

// Tokens that passes over a row take at a time.
inline constexpr int kBlock = 4 * kLanes;
static_assert(kBlock == kBlockTokens);

// The largest of a block's logits; NaN counts as -inf.
FDSPEC_INLINE float max_of_block(const F16 logits[4]) {
  F16 top = splat(-kInfinity);
  for (int i = 0; i < 4; ++i) top = max(logits[i], top);
  return top.reduce_max();
}

// Blocks of a row that are not as the model gave them.
struct Patches {
  const float* logits = nullptr;        // [vocab], where patched blocks are
  const uint8_t* is_patched = nullptr;  // [blocks]; null: none is
};

// Where a row is highest.
struct Peak {
  float score;    // the largest score
  int32_t token;  // the lowest of the tokens that have it
  // The largest logits of kBlock sets that share out the row's tokens; -inf for an empty set.
  F16 tops[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
};

// score = logit / temperature. NaN counts as -inf, and +inf as the largest float.
class Scores {
 public:
  // maxima: [blocks] of the patched row, or null.
  Scores(const float* logits, int64_t vocab, float temperature, const float* maxima = nullptr,
         Patches patches = {})
      : logits_(logits),
        vocab_(vocab),
        temperature_(temperature),
        maxima_(maxima),
        patches_(patches) {}

  int64_t vocab() const { return vocab_; }
  float temperature() const { return temperature_; }

  // Scores of the tokens [token, token + kLanes); -inf past the end.
  FDSPEC_INLINE F16 load(int64_t token) const { return scale(load_logits(token)); }

  FDSPEC_INLINE F16 load_logits(int64_t token) const {
    if (token + kLanes <= vocab_) return F16::load(logits_at(token) + token);
    const int count = static_cast<int>(max_of<int64_t>(0, vocab_ - token));
    if (count == 0) return splat(-kInfinity);
    return select(M16::first(count), F16::load_partial(logits_at(token) + token, count),
                  splat(-kInfinity));
  }

  // Logits of the kBlock tokens from `first` on; -inf past the end.
  FDSPEC_INLINE void load_block(int64_t first, F16 logits[kBlock / kLanes]) const {
    const bool is_whole = first + kBlock <= vocab_;
    const float* row = logits_at(first);
    for (int i = 0; i < kBlock / kLanes; ++i) {
      const int64_t token = first + i * kLanes;
      logits[i] = is_whole ? F16::load(row + token) : load_logits(token);
    }
  }

  FDSPEC_INLINE F16 scale(F16 logits) const {
    F16 score = max(logits, splat(-kInfinity));
    if (temperature_ != 1.0f) score = score / splat(temperature_);
    return min(score, splat(kLargestFloat));
  }

  float score_of(int64_t token) const {
    float score[kLanes];
    scale(splat(logits_at(token)[token])).store(score);
    return score[0];
  }

  // A logit below this one has a score below `score`, whatever the rounding; it may be a bit too
  // low. It spares the division for most tokens.
  float logit_below(float score) const {
    if (!(score > -kInfinity)) return -kInfinity;
    return lower(score) * temperature_;
  }

  // True if all tokens of the block that begins there are known to have lower logits.
  FDSPEC_INLINE bool is_block_below(int64_t first, float logit) const {
    return maxima_ != nullptr && maxima_[first / kBlock] < logit;
  }

  // Goes over the row once, or over the maxima of its blocks.
  Peak peak() const { return maxima_ == nullptr ? peak_of_row() : peak_of_maxima(); }

 private:
  // The row that has the block of this token.
  FDSPEC_INLINE const float* logits_at(int64_t token) const {
    const bool is_patched =
        patches_.is_patched != nullptr && patches_.is_patched[token / kBlock] != 0;
    return is_patched ? patches_.logits : logits_;
  }

  Peak peak_of_maxima() const {
    const Scores blocks(maxima_, num_token_blocks(vocab_), temperature_);
    Peak peak = blocks.peak_of_row();
    peak.token = find(peak.score, int64_t{peak.token} * kBlock);
    return peak;
  }

  Peak peak_of_row() const {
    constexpr int64_t kChunk = 16 * kBlock;
    Peak peak;
    peak.score = -kInfinity;
    int64_t chunk = 0;
    for (int64_t begin = 0; begin < vocab_; begin += kChunk) {
      const int64_t end = min_of(begin + kChunk, vocab_);
      for (int64_t first = begin; first < end; first += kBlock) {
        F16 logits[4];
        load_block(first, logits);
        for (int i = 0; i < 4; ++i) peak.tops[i] = max(logits[i], peak.tops[i]);
      }
      const F16 top = max(max(peak.tops[0], peak.tops[1]), max(peak.tops[2], peak.tops[3]));
      // Division keeps the order, so the largest logit has the largest score.
      const float so_far = scale(top).reduce_max();
      if (so_far > peak.score) {
        peak.score = so_far;
        chunk = begin;
      }
    }
    peak.token = find(peak.score, chunk);
    return peak;
  }

  // Lowest token from `token` on, a multiple of kLanes, with this score, which must occur.
  int32_t find(float score, int64_t token) const {
    for (;; token += kLanes) {
      const uint32_t bits = (load(token) == splat(score)).bits();
      if (bits != 0) return static_cast<int32_t>(token + __builtin_ctz(bits));
    }
  }

  const float* logits_;
  int64_t vocab_;
  float temperature_;
  const float* maxima_;
  Patches patches_;
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

}  // namespace FDSPEC_ISA
}  // namespace fdspec
