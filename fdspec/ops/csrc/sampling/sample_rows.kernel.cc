// SPDX-License-Identifier: Apache-2.0
#include "sampling/chain.h"
#include "sampling/noisy_search.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

int32_t sample_row(const SampleArgs& args, int64_t row, const RowScratch& scratch) {
  const SamplingRows& params = args.params;
  const Scores scores = score_row(args.logits + row * args.vocab, args.vocab, params, row, scratch);
  const Peak peak = scores.peak();
  if (params.is_greedy(row) || peak.score == -kInfinity) return peak.token;
  const NoiseKey key{params.seed[row], params.choice[row], params.position[row]};
  if (keeps_all(params, row, args.vocab)) return sample_all(scores, peak, key);
  const int64_t count = keep_candidates(scores, params, row, peak, scratch.candidates);
  return sample_candidates(scratch.candidates, count, key);
}

// Probabilities of the tokens that the chain keeps, 0 for the others.
void law_of_row(const LawArgs& args, int64_t row, const RowScratch& scratch, float* law) {
  const SamplingRows& params = args.params;
  const Scores scores = score_row(args.logits + row * args.vocab, args.vocab, params, row, scratch);
  const Peak peak = scores.peak();
  const float top = peak.score;
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
    law[peak.token] = 1.0f;
    return;
  }
  Candidate* candidates = scratch.candidates;
  const int64_t count = keep_candidates(scores, params, row, peak, candidates);
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
