// SPDX-License-Identifier: Apache-2.0
// The argmax of score + noise. Noise is bounded, so a token whose score plus the largest possible
// noise stays below a sum that another one reaches cannot win, and its noise is never drawn.
#pragma once

#include "sampling/collect.h"
#include "sampling/noise.h"

namespace fdspec {
namespace FDSPEC_ISA {

// The best token so far of each lane.
class Best {
 public:
  FDSPEC_INLINE void offer(F16 score, I16 token) {
    const M16 better = (score > score_) | ((score == score_) & (token < token_));
    score_ = select(better, score, score_);
    token_ = select(better, token, token_);
  }

  FDSPEC_INLINE float score() const { return score_.reduce_max(); }

  // Lowest token with the best score.
  int32_t token() const {
    float scores[kLanes];
    int32_t tokens[kLanes];
    score_.store(scores);
    token_.store(tokens);
    int best = 0;
    for (int i = 1; i < kLanes; ++i) {
      const bool wins =
          scores[i] > scores[best] || (scores[i] == scores[best] && tokens[i] < tokens[best]);
      if (wins) best = i;
    }
    return tokens[best];
  }

 private:
  F16 score_ = splat(-kInfinity);
  I16 token_ = I16::broadcast(INT32_MAX);
};

// Tries tokens in any order.
class NoisySearch {
 public:
  explicit NoisySearch(NoiseKey key) : key_(key) {}

  void offer(F16 scores, I16 tokens) {
    const I16 words = token_words(tokens, key_);
    if (!may_reach(words, goal_ - scores.reduce_max()).any()) return;
    best_.offer(scores + gumbel(words), tokens);
    goal_ = lower(best_.score());
  }

  // kBlock neighbours with one Philox block for four of them; `first` is a multiple of kBlock.
  void offer_neighbours(const Scores& source, int64_t first) {
    F16 top = splat(-kInfinity);
    float scores[kBlock];
    for (int i = 0; i < 4; ++i) {
      const F16 values = source.load(first + i * kLanes);
      values.store(scores + i * kLanes);
      top = max(values, top);
    }
    // Token 4 * i + j has word j of lane i.
    const I16 blocks = I16::broadcast(static_cast<int32_t>(first / 4)) + I16::iota();
    I16 words[4];
    philox(blocks, key_, words);
    const float bound = goal_ - top.reduce_max();
    for (int j = 0; j < 4; ++j) {
      if (!may_reach(words[j], bound).any()) continue;
      const F16 values = F16::gather(scores + j, shift_left<2>(I16::iota()));
      best_.offer(values + gumbel(words[j]), shift_left<2>(blocks) + I16::broadcast(j));
    }
    goal_ = lower(best_.score());
  }

  // A token with a lower score cannot win any more.
  float lowest_score() const { return goal_ - kMaxNoise; }

  int32_t token() const { return best_.token(); }

 private:
  NoiseKey key_;
  Best best_;
  // Whoever stays below does not win: a little less than the best sum.
  float goal_ = -kInfinity;
};

// argmax of score + noise over all tokens; the peak is above -inf.
inline int32_t sample_all(const Scores& scores, const Peak& peak, NoiseKey key) {
  NoisySearch search(key);
  search.offer(splat(peak.score), I16::broadcast(peak.token));
  float lowest_logit = scores.logit_below(search.lowest_score());
  Packed packed;
  const auto offer_packed = [&] {
    packed.drain([&](F16 logits, I16 tokens, int) { search.offer(scores.scale(logits), tokens); });
  };
  for (int64_t first = 0; first < scores.vocab(); first += kBlock) {
    if (scores.is_block_below(first, lowest_logit)) continue;
    F16 logits[4];
    M16 passed[4];
    scores.load_block(first, logits);
    for (int i = 0; i < 4; ++i) passed[i] = logits[i] >= splat(lowest_logit);
    if (!any_of(passed)) continue;
    int num_passed = 0;
    for (int i = 0; i < 4; ++i) num_passed += __builtin_popcount(passed[i].bits());
    if (num_passed > kLanes) {
      // Words for a vector of single tokens cost as much as those for four vectors of neighbours.
      search.offer_neighbours(scores, first);
    } else {
      for (int i = 0; i < 4; ++i) packed.push(logits[i], first + i * kLanes, passed[i]);
      if (!packed.is_full()) continue;
      offer_packed();
    }
    lowest_logit = scores.logit_below(search.lowest_score());
  }
  offer_packed();
  return search.token();
}

// The same over some tokens; count > 0.
inline const Candidate& sample_candidates(const Candidate* candidates, int64_t count,
                                          NoiseKey key) {
  NoisySearch search(key);
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    float scores[kLanes];
    int32_t tokens[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      // Lanes past the end repeat the last candidate.
      const Candidate& candidate = candidates[min_of(begin + i, count - 1)];
      scores[i] = candidate.score;
      tokens[i] = candidate.token;
    }
    search.offer(F16::load(scores), I16::load(tokens));
  }
  const Candidate* chosen = candidates;
  while (chosen->token != search.token()) ++chosen;
  return *chosen;
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
