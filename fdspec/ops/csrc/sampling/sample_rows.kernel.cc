// SPDX-License-Identifier: Apache-2.0
#include "sampling/chain.h"
#include "sampling/noise.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

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

// Scores of a block of tokens and the words of their noise; token 4 * i + j of the block has word j
// of lane i.
struct NoiseBlock {
  static constexpr int kTokens = 4 * kLanes;
  float scores[kTokens];
  I16 counters;
  I16 words[4];

  NoiseBlock(const Scores& source, int64_t first, NoiseKey key) {
    for (int i = 0; i < 4; ++i) source.load(first + i * kLanes).store(scores + i * kLanes);
    counters = I16::broadcast(static_cast<int32_t>(first / 4)) + I16::iota();
    philox(counters, key, words);
  }

  // True if a sum could reach `goal`: the largest score with each lane's largest noise.
  bool may_reach(float goal) const {
    F16 top = splat(-kInfinity);
    for (int i = 0; i < 4; ++i) top = max(F16::load(scores + i * kLanes), top);
    // Words compare like their upper bits, which is all that the noise looks at.
    I16 word = shift_right<9>(words[0]);
    for (int j = 1; j < 4; ++j) word = max(word, shift_right<9>(words[j]));
    constexpr float kRounding = 1e-3f;
    const F16 noise = gumbel(shift_left<9>(word)) + splat(kRounding);
    return (splat(top.reduce_max()) + noise >= splat(goal)).any();
  }

  FDSPEC_INLINE void offer_to(Best& best) const {
    for (int j = 0; j < 4; ++j) {
      const F16 score = F16::gather(scores + j, shift_left<2>(I16::iota()));
      best.offer(score + gumbel(words[j]), shift_left<2>(counters) + I16::broadcast(j));
    }
  }
};

// argmax of score + noise over all tokens; `top` is the largest score and above -inf.
int32_t sample_all(const Scores& scores, float top, NoiseKey key) {
  Best best;
  // Noise is computed only where it can matter: a token whose score plus the largest possible
  // noise stays below a sum that another one reaches cannot win.
  float goal = lower(top + kMinNoise);
  for (int64_t first = 0; first < scores.vocab(); first += NoiseBlock::kTokens) {
    const F16 lowest_logit = splat(scores.logit_below(goal - kMaxNoise));
    bool can_win = false;
    for (int i = 0; i < 4; ++i) {
      can_win = can_win || (scores.load_logits(first + i * kLanes) >= lowest_logit).any();
    }
    if (!can_win) continue;
    const NoiseBlock block(scores, first, key);
    if (!block.may_reach(goal)) continue;
    block.offer_to(best);
    goal = max_of(goal, lower(best.score()));
  }
  return best.token();
}

// The same over some tokens.
int32_t sample_candidates(const Candidate* candidates, int64_t count, NoiseKey key) {
  Best best;
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    float scores[kLanes];
    int32_t tokens[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      // Lanes past the end repeat the last candidate.
      const Candidate& candidate = candidates[min_of(begin + i, count - 1)];
      scores[i] = candidate.score;
      tokens[i] = candidate.token;
    }
    const I16 ids = I16::load(tokens);
    best.offer(F16::load(scores) + token_noise(ids, key), ids);
  }
  return best.token();
}

int32_t sample_row(const SampleArgs& args, int64_t row, const RowScratch& scratch) {
  const SamplingRows& params = args.params;
  const Scores scores = score_row(args.logits + row * args.vocab, args.vocab, params, row, scratch);
  const float top = scores.largest();
  if (params.is_greedy(row) || top == -kInfinity) return static_cast<int32_t>(scores.find(top));
  const NoiseKey key{params.seed[row], params.choice[row], params.position[row]};
  if (keeps_all(params, row, args.vocab)) return sample_all(scores, top, key);
  const int64_t count = keep_candidates(scores, params, row, top, scratch.candidates);
  return sample_candidates(scratch.candidates, count, key);
}

// Probabilities of the tokens that the chain keeps, 0 for the others.
void law_of_row(const LawArgs& args, int64_t row, const RowScratch& scratch, float* law) {
  const SamplingRows& params = args.params;
  const Scores scores = score_row(args.logits + row * args.vocab, args.vocab, params, row, scratch);
  const float top = scores.largest();
  if (!params.is_greedy(row) && top > -kInfinity && keeps_all(params, row, args.vocab)) {
    const double sum = static_cast<double>(total_weight(scores, top)) * 0x1p-40;
    const F16 total = splat(static_cast<float>(sum));
    for (int64_t token = 0; token < args.vocab; token += kLanes) {
      const int width = static_cast<int>(min_of<int64_t>(kLanes, args.vocab - token));
      const F16 weight = exp(scores.load(token) - splat(top));
      (weight / total).store_partial(law + token, width);
    }
    return;
  }
  std::memset(law, 0, sizeof(float) * static_cast<size_t>(args.vocab));
  if (params.is_greedy(row) || top == -kInfinity) {
    law[scores.find(top)] = 1.0f;
    return;
  }
  Candidate* candidates = scratch.candidates;
  const int64_t count = keep_candidates(scores, params, row, top, candidates);
  const double sum = static_cast<double>(set_weights(candidates, count, top)) * 0x1p-40;
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    float values[kLanes];
    for (int i = 0; i < kLanes; ++i) values[i] = candidates[min_of(begin + i, count - 1)].score;
    const F16 weight = exp(F16::load(values) - splat(top));
    (weight / splat(static_cast<float>(sum))).store(values);
    for (int i = 0; i < kLanes && begin + i < count; ++i) {
      law[candidates[begin + i].token] = values[i];
    }
  }
}

}  // namespace

void sample_rows(const SampleArgs& args, Slice slice) {
  const RowScratch scratch(args.workspace, args.vocab, slice.index);
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    args.chosen[row] = sample_row(args, row, scratch);
  }
}

void processed_probabilities(const LawArgs& args, Slice slice) {
  const RowScratch scratch(args.workspace, args.vocab, slice.index);
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    law_of_row(args, row, scratch, args.law + row * args.vocab);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
