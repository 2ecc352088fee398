// SPDX-License-Identifier: Apache-2.0
#include "sampling/chain.h"
#include "sampling/noisy_search.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

// The argmax of score + noise over the shortest prefix of the order that weighs at least the mass,
// which is between two bounds; kUndecided if it depends on where. The prefix is among the
// candidates, together with others that come after it; they change places.
//
// Nobody looks for its end: the winner among all candidates belongs to it, as it mostly does, if
// those before the winner weigh less than the mass; else the search goes on among those.
constexpr int32_t kUndecided = -1;
int32_t sample_prefix(Candidate* candidates, int64_t count, double least_mass, double most_mass,
                      NoiseKey key) {
  for (;;) {
    const Candidate& winner = sample_candidates(candidates, count, key);
    const double before = static_cast<double>(weight_before(candidates, count, winner));
    if (before < least_mass) return winner.token;
    if (before < most_mass) return kUndecided;
    count = select_before(candidates, count, winner);
  }
}

// The same over the shortest run of tokens with a mass of top_p.
int32_t sample_mass(const Scores& scores, float top_p, float top, NoiseKey key,
                    Candidate* candidates) {
  const double share = static_cast<double>(top_p);
  const NearTop near = collect_near(scores, top, kNearDistance, candidates);
  const int64_t whole = weight_above(candidates, near.count, top - kNearDistance);
  if (static_cast<double>(whole) >= share * near.most_total) {
    const int32_t chosen = sample_prefix(candidates, near.count, share * near.least_total,
                                         share * near.most_total, key);
    if (chosen != kUndecided) return chosen;
  }
  const int64_t total = total_weight(scores, top);
  const double mass = share * static_cast<double>(total);
  const float lowest = lowest_in_mass(top_p, total, scores.vocab(), top);
  const int64_t count = collect_above(scores, lowest, top, candidates);
  return sample_prefix(candidates, count, mass, mass, key);
}

int32_t sample_row(const SampleArgs& args, int64_t row, const RowScratch& scratch) {
  const SamplingRows& params = args.params;
  const float* maxima = args.block_maxima == nullptr
                            ? nullptr
                            : args.block_maxima + row * num_token_blocks(args.vocab);
  const Scores scores =
      score_row(args.logits + row * args.vocab, maxima, args.vocab, params, row, scratch);
  const Peak peak = scores.peak();
  if (params.is_greedy(row) || peak.score == -kInfinity) return peak.token;
  const NoiseKey key{params.seed[row], params.choice[row], params.position[row]};
  if (keeps_all(params, row, args.vocab)) return sample_all(scores, peak, key);
  if (!has_top_k(params, row, args.vocab) && !(params.min_p[row] > 0.0f)) {
    return sample_mass(scores, params.top_p[row], peak.score, key, scratch.candidates);
  }
  const int64_t count = keep_candidates(scores, params, row, peak, scratch.candidates);
  return sample_candidates(scratch.candidates, count, key).token;
}

// Probabilities of the tokens that the chain keeps, 0 for the others.
void law_of_row(const LawArgs& args, int64_t row, const RowScratch& scratch, float* law) {
  const SamplingRows& params = args.params;
  const Scores scores =
      score_row(args.logits + row * args.vocab, nullptr, args.vocab, params, row, scratch);
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
