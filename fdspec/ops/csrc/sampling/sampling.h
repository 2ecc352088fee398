// SPDX-License-Identifier: Apache-2.0
// Choosing tokens from logits: the processor chain, its law, keyed sampling, and logprobs.
//
// Chain of a row, in fp32: repetition, frequency and presence penalty, bias, mask, temperature,
// top_k, top_p, min_p; then argmax of score + Gumbel noise. Every selection is exact and every sum
// is an integer sum, so results do not depend on the instruction set. No row is ever sorted.
#pragma once

#include "common/dispatch.h"

namespace fdspec {

// Parameters of R rows; fdspec/ops/row_params.py describes each field.
struct SamplingRows {
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const uint64_t* seed;
  const uint32_t* choice;
  const uint32_t* position;
  const float* repetition_penalty;
  const float* presence_penalty;
  const float* frequency_penalty;
  const int64_t* count_splits;
  const int32_t* count_ids;
  const int32_t* output_counts;
  const uint8_t* in_prompt;
  const int64_t* bias_splits;
  const int32_t* bias_ids;
  const float* bias_values;
  const uint32_t* mask;  // [rows, mask_words] or null
  int64_t mask_words;

  static constexpr float kGreedyTemperature = 1e-5f;
  FDSPEC_INLINE bool is_greedy(int64_t row) const { return temperature[row] < kGreedyTemperature; }
};

struct SampleArgs {
  const float* logits;        // [rows, vocab]
  const float* block_maxima;  // [rows, num_token_blocks(vocab)] of the logits, or null
  int64_t rows;
  int64_t vocab;
  SamplingRows params;
  int32_t* chosen;  // [rows]
  char* workspace;  // sampling_workspace_bytes() for each slice
};

struct LawArgs {
  const float* logits;
  int64_t rows;
  int64_t vocab;
  SamplingRows params;
  float* law;  // [rows, vocab]
  char* workspace;
};

struct LogprobsArgs {
  const float* logits;
  int64_t rows;
  int64_t vocab;
  const int32_t* token_ids;  // [rows]
  int64_t num_top;           // <= vocab
  float* logprob;            // [rows]
  int32_t* rank;             // [rows]
  int32_t* top_ids;          // [rows, num_top]
  float* top_logprobs;       // [rows, num_top]
  char* workspace;
};

// Slices split the rows.
FDSPEC_DECLARE_KERNEL(sample_rows, SampleArgs)
FDSPEC_DECLARE_KERNEL(processed_probabilities, LawArgs)
FDSPEC_DECLARE_KERNEL(row_logprobs, LogprobsArgs)

// Where the parts of a slice's scratch memory begin (logits at 0), and its size; multiples of 64.
struct SamplingWorkspace {
  int64_t maxima;
  int64_t is_patched;
  int64_t candidates;
  int64_t num_bytes;
  FDSPEC_EXPORT explicit SamplingWorkspace(int64_t vocab);
};

// Scratch memory of one slice.
FDSPEC_EXPORT int64_t sampling_workspace_bytes(int64_t vocab);
// Threads worth using.
FDSPEC_EXPORT int sampling_slices(int64_t rows, int64_t vocab);

FDSPEC_EXPORT void run_sample_rows(const SampleArgs& args, int num_slices);
FDSPEC_EXPORT void run_processed_probabilities(const LawArgs& args, int num_slices);
FDSPEC_EXPORT void run_row_logprobs(const LogprobsArgs& args, int num_slices);

}  // namespace fdspec
