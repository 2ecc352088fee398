// SPDX-License-Identifier: Apache-2.0
#include "sampling/chain.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

// log-softmax of one row; if every logit is -inf, all tokens are equally likely.
class Logprobs {
 public:
  Logprobs(const Scores& scores, const Peak& peak) : top_(peak.score) {
    if (top_ == -kInfinity) {
      log_sum_ = scalar_log(static_cast<float>(scores.vocab()));
    } else {
      const double sum = static_cast<double>(total_weight(scores, top_)) * 0x1p-40;
      log_sum_ = scalar_log(static_cast<float>(sum));
    }
  }

  float of_score(float score) const {
    return (top_ == -kInfinity ? 0.0f : score - top_) - log_sum_;
  }

 private:
  float top_;
  float log_sum_;
};

// 1 + number of tokens that come before this one in the order.
int32_t rank_of(const Scores& scores, int64_t token) {
  const F16 own = splat(scores.score_of(token));
  int64_t before = 0;
  for (int64_t other = 0; other < scores.vocab(); other += kLanes) {
    const F16 values = scores.load(other);
    const int num_lower =
        static_cast<int>(max_of<int64_t>(0, min_of<int64_t>(kLanes, token - other)));
    const M16 ahead = (values > own) | ((values == own) & M16::first(num_lower));
    before += __builtin_popcount(ahead.bits());
  }
  return static_cast<int32_t>(before + 1);
}

// The num_top first tokens of the order, in order.
void collect_top(const Scores& scores, const Peak& peak, int64_t num_top, Candidate* candidates) {
  int64_t count = collect_best(scores, peak, num_top, candidates);
  sort_candidates(candidates, count);
  for (int64_t token = 0; count < num_top; ++token) {
    const float score = scores.score_of(token);
    if (score == -kInfinity) candidates[count++] = {score, static_cast<int32_t>(token), 0};
  }
}

}  // namespace

void row_logprobs(const LogprobsArgs& args, Slice slice) {
  const RowScratch scratch(args.workspace, args.vocab, slice.index);
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Scores scores(args.logits + row * args.vocab, args.vocab, 1.0f);
    const Peak peak = scores.peak();
    const Logprobs logprobs(scores, peak);
    const int32_t token = args.token_ids[row];
    args.logprob[row] = logprobs.of_score(scores.score_of(token));
    args.rank[row] = rank_of(scores, token);
    if (args.num_top > 0) collect_top(scores, peak, args.num_top, scratch.candidates);
    for (int64_t i = 0; i < args.num_top; ++i) {
      args.top_ids[row * args.num_top + i] = scratch.candidates[i].token;
      args.top_logprobs[row * args.num_top + i] = logprobs.of_score(scratch.candidates[i].score);
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
