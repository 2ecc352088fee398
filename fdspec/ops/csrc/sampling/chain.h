// SPDX-License-Identifier: Apache-2.0
// The processor chain of one row: from logits to scores, and to the tokens that are kept.
#pragma once

#include "sampling/collect.h"
#include "sampling/sampling.h"

namespace fdspec {
namespace FDSPEC_ISA {

// Where a row's patched blocks and candidates go.
struct RowScratch {
  float* logits;          // [vocab], patched blocks or all
  float* maxima;          // [blocks] of the patched row
  uint8_t* is_patched;    // [blocks]
  Candidate* candidates;  // [vocab], and room for a vector more

  RowScratch(char* workspace, int64_t vocab, int slice_index) {
    const SamplingWorkspace layout(vocab);
    char* mine = workspace + slice_index * layout.num_bytes;
    logits = reinterpret_cast<float*>(mine);
    maxima = reinterpret_cast<float*>(mine + layout.maxima);
    is_patched = reinterpret_cast<uint8_t*>(mine + layout.is_patched);
    candidates = reinterpret_cast<Candidate*>(mine + layout.candidates);
  }
};

// Logits of single tokens, to be changed: their blocks are copied from the row when first asked
// for.
class PatchedRow {
 public:
  PatchedRow(const float* logits, int64_t vocab, const RowScratch& scratch)
      : logits_(logits), vocab_(vocab), scratch_(scratch) {
    std::memset(scratch.is_patched, 0, static_cast<size_t>(num_token_blocks(vocab)));
  }

  float& operator[](int64_t token) {
    const int64_t block = token / kBlock;
    if (scratch_.is_patched[block] == 0) {
      const int64_t first = block * kBlock;
      const int64_t count = min_of<int64_t>(kBlock, vocab_ - first);
      std::memcpy(scratch_.logits + first, logits_ + first,
                  sizeof(float) * static_cast<size_t>(count));
      scratch_.is_patched[block] = 1;
    }
    return scratch_.logits[token];
  }

  // maxima: of the row, or null.
  Scores scores(float temperature, const float* maxima) const {
    const Patches patches{scratch_.logits, scratch_.is_patched};
    const Scores patched(logits_, vocab_, temperature, nullptr, patches);
    if (maxima == nullptr) return patched;
    for (int64_t block = 0; block < num_token_blocks(vocab_); ++block) {
      scratch_.maxima[block] = maxima[block];
      if (scratch_.is_patched[block] == 0) continue;
      F16 logits[4];
      patched.load_block(block * kBlock, logits);
      scratch_.maxima[block] = max_of_block(logits);
    }
    return {logits_, vocab_, temperature, scratch_.maxima, patches};
  }

 private:
  const float* logits_;
  int64_t vocab_;
  const RowScratch& scratch_;
};

// Row: float* or PatchedRow.
template <class Row>
void add_penalties_and_biases(const SamplingRows& params, int64_t row, Row& logits) {
  const float repetition = params.repetition_penalty[row];
  const float presence = params.presence_penalty[row];
  const float frequency = params.frequency_penalty[row];
  for (int64_t i = params.count_splits[row]; i < params.count_splits[row + 1]; ++i) {
    float& logit = logits[params.count_ids[i]];
    const int32_t count = params.output_counts[i];
    if (params.in_prompt[i] != 0 || count > 0) {
      logit = logit > 0.0f ? logit / repetition : logit * repetition;
    }
    logit -= frequency * static_cast<float>(count);
    if (count > 0) logit -= presence;
  }
  for (int64_t i = params.bias_splits[row]; i < params.bias_splits[row + 1]; ++i) {
    logits[params.bias_ids[i]] += params.bias_values[i];
  }
}

// Bars the tokens whose bit is clear.
inline void apply_mask(const uint32_t* mask, int64_t vocab, float* logits) {
  int32_t powers[kLanes];
  for (int i = 0; i < kLanes; ++i) powers[i] = 1 << i;
  const I16 lane_bits = I16::load(powers);
  for (int64_t token = 0; token < vocab; token += kLanes) {
    const int width = static_cast<int>(min_of<int64_t>(kLanes, vocab - token));
    const uint32_t bits = mask[token / 32] >> (token % 32);
    const M16 is_barred = (I16::broadcast(static_cast<int32_t>(bits)) & lane_bits) == I16::zero();
    const F16 allowed = F16::load_partial(logits + token, width);
    select(is_barred, splat(-kInfinity), allowed).store_partial(logits + token, width);
  }
}

// Scores of a row after everything up to temperature. What changes is copied.
// maxima: [blocks] of the row, or null.
inline Scores score_row(const float* logits, const float* maxima, int64_t vocab,
                        const SamplingRows& params, int64_t row, const RowScratch& scratch) {
  const float temperature = params.is_greedy(row) ? 1.0f : params.temperature[row];
  if (params.mask != nullptr) {
    std::memcpy(scratch.logits, logits, sizeof(float) * static_cast<size_t>(vocab));
    float* all = scratch.logits;
    add_penalties_and_biases(params, row, all);
    apply_mask(params.mask + row * params.mask_words, vocab, all);
    return {all, vocab, temperature};
  }
  const bool has_counts = params.count_splits[row] < params.count_splits[row + 1];
  const bool has_biases = params.bias_splits[row] < params.bias_splits[row + 1];
  if (!has_counts && !has_biases) return {logits, vocab, temperature, maxima};
  PatchedRow patched(logits, vocab, scratch);
  add_penalties_and_biases(params, row, patched);
  return patched.scores(temperature, maxima);
}

// Natural logarithm with the same bits on every level.
inline float scalar_log(float x) {
  float result[kLanes];
  log(splat(x)).store(result);
  return result[0];
}

// A score below which no token can be in the shortest run with a mass of top_p: all tokens below
// it together weigh less than what the run may leave out.
inline float lowest_in_mass(float top_p, int64_t total, int64_t vocab, float top) {
  const double left_out = (1.0 - static_cast<double>(top_p)) * static_cast<double>(total);
  const double weight = left_out / static_cast<double>(vocab) - 1.0;  // each is rounded by 1/2
  if (weight <= 0.0) return -kInfinity;
  constexpr float kMargin = 0.01f;
  return top + scalar_log(static_cast<float>(weight * 0x1p-40)) - kMargin;
}

// Keeps the candidates with exp(score - top) >= min_p; returns how many.
inline int64_t keep_likely(Candidate* candidates, int64_t count, float top, float min_p) {
  int64_t kept = 0;
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    const int width = static_cast<int>(min_of<int64_t>(kLanes, count - begin));
    float scores[kLanes];
    for (int i = 0; i < kLanes; ++i) scores[i] = i < width ? candidates[begin + i].score : top;
    const uint32_t bits = (exp(F16::load(scores) - splat(top)) >= splat(min_p)).bits();
    for (int i = 0; i < width; ++i) {
      if ((bits >> i & 1) != 0) candidates[kept++] = candidates[begin + i];
    }
  }
  return kept;
}

inline bool has_top_k(const SamplingRows& params, int64_t row, int64_t vocab) {
  return params.top_k[row] > 0 && params.top_k[row] < vocab;
}

// True if top_k, top_p and min_p leave all tokens of the row.
inline bool keeps_all(const SamplingRows& params, int64_t row, int64_t vocab) {
  return !has_top_k(params, row, vocab) && !(params.top_p[row] < 1.0f) &&
         !(params.min_p[row] > 0.0f);
}

// Tokens that far from the largest score are weighed exactly at first, the others roughly.
inline constexpr float kNearDistance = 10.0f;

// Gathers the shortest prefix of the order with a mass of top_p; returns its length.
inline int64_t keep_mass(const Scores& scores, float top_p, float top, Candidate* candidates) {
  const double share = static_cast<double>(top_p);
  const NearTop near = collect_near(scores, top, kNearDistance, candidates);
  const auto is_prefix = [&](int64_t count, double mass) {
    const Measure kept = measure(candidates, count);
    return static_cast<double>(kept.weight) >= mass && kept.lowest >= top - kNearDistance;
  };
  int64_t count = select_mass(candidates, near.count, share * near.least_total, top);
  // What is enough for the largest total that may be, is enough for the exact one.
  if (is_prefix(count, share * near.most_total)) return count;
  const int64_t total = total_weight(scores, top);
  const double mass = share * static_cast<double>(total);
  count = select_mass(candidates, near.count, mass, top);
  if (is_prefix(count, mass)) return count;
  const float lowest = lowest_in_mass(top_p, total, scores.vocab(), top);
  return select_mass(candidates, collect_above(scores, lowest, top, candidates), mass, top);
}

// Gathers the tokens that top_k, top_p and min_p keep, in any order; returns how many, at least 1.
// The peak is above -inf; the row must not be one that keeps_all().
inline int64_t keep_candidates(const Scores& scores, const SamplingRows& params, int64_t row,
                               const Peak& peak, Candidate* candidates) {
  const int64_t top_k = params.top_k[row];
  const float top_p = params.top_p[row], min_p = params.min_p[row], top = peak.score;
  const bool has_top_p = top_p < 1.0f;
  int64_t count = 0;
  if (has_top_k(params, row, scores.vocab())) {
    count = collect_best(scores, peak, top_k, candidates);
    if (has_top_p) {
      const double total = static_cast<double>(set_weights(candidates, count, top));
      count = select_mass(candidates, count, static_cast<double>(top_p) * total, top);
    }
  } else if (has_top_p) {
    count = keep_mass(scores, top_p, top, candidates);
  } else {
    constexpr float kMargin = 0.01f;
    count = collect_above(scores, top + scalar_log(min_p) - kMargin, top, candidates);
  }
  return min_p > 0.0f ? keep_likely(candidates, count, top, min_p) : count;
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
