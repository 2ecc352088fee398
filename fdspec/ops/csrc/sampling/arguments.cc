// SPDX-License-Identifier: Apache-2.0
#include "sampling/arguments.h"

#include <string>

#include "sampling/block_maxima.h"

namespace fdspec {
namespace {

[[noreturn]] void fail(const std::string& name, int64_t row, const std::string& problem) {
  throw ArgumentError("params." + name + "[" + std::to_string(row) + "]: " + problem);
}

// Checks that splits cut [0, count) into one range for each row.
void expect_splits(const char* name, const int64_t* splits, int64_t rows, int64_t count) {
  for (int64_t row = 0; row < rows; ++row) {
    if (splits[row] > splits[row + 1]) fail(name, row, "splits must not decrease");
  }
  if (splits[0] != 0 || splits[rows] != count) {
    throw ArgumentError("params." + std::string(name) + ": must run from 0 to " +
                        std::to_string(count));
  }
}

void expect_tokens(const char* name, const int32_t* ids, int64_t count, int64_t vocab) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    throw ArgumentError(std::string(name) + "[" + std::to_string(i) + "]: token " +
                        std::to_string(ids[i]) + " is outside the vocabulary, 0 .. " +
                        std::to_string(vocab - 1));
  }
}

void expect_ranges(const SamplingRows& params, int64_t rows) {
  // Written so that a NaN fails.
  for (int64_t row = 0; row < rows; ++row) {
    if (!(params.temperature[row] >= 0.0f)) fail("temperature", row, "must be at least 0");
    if (params.top_k[row] < 0) fail("top_k", row, "must be at least 0");
    if (!(params.top_p[row] > 0.0f)) fail("top_p", row, "must be above 0");
    if (!(params.min_p[row] >= 0.0f && params.min_p[row] <= 1.0f)) {
      fail("min_p", row, "must be between 0 and 1");
    }
    if (!(params.repetition_penalty[row] > 0.0f)) {
      fail("repetition_penalty", row, "must be above 0");
    }
  }
}

SamplingRows rows_of(const SamplingViews& views, int64_t rows, int64_t vocab) {
  SamplingRows result;
  result.temperature = input<float>(views.temperature, {rows});
  result.top_k = input<int32_t>(views.top_k, {rows});
  result.top_p = input<float>(views.top_p, {rows});
  result.min_p = input<float>(views.min_p, {rows});
  result.seed = input<uint64_t>(views.seed, {rows});
  result.choice = input<uint32_t>(views.choice, {rows});
  result.position = input<uint32_t>(views.position, {rows});
  result.repetition_penalty = input<float>(views.repetition_penalty, {rows});
  result.presence_penalty = input<float>(views.presence_penalty, {rows});
  result.frequency_penalty = input<float>(views.frequency_penalty, {rows});
  result.count_ids = input<int32_t>(views.count_ids, {kAnySize});
  const int64_t num_counts = views.count_ids.size(0);
  result.output_counts = input<int32_t>(views.output_counts, {num_counts});
  result.in_prompt = input<uint8_t>(views.in_prompt, {num_counts});
  result.count_splits = input<int64_t>(views.count_splits, {rows + 1});
  result.bias_ids = input<int32_t>(views.bias_ids, {kAnySize});
  const int64_t num_biases = views.bias_ids.size(0);
  result.bias_values = input<float>(views.bias_values, {num_biases});
  result.bias_splits = input<int64_t>(views.bias_splits, {rows + 1});
  result.mask_words = (vocab + 31) / 32;
  result.mask = optional_input<uint32_t>(views.mask, {rows, result.mask_words});
  expect_ranges(result, rows);
  expect_splits("count_splits", result.count_splits, rows, num_counts);
  expect_splits("bias_splits", result.bias_splits, rows, num_biases);
  expect_tokens("params.count_ids", result.count_ids, num_counts, vocab);
  expect_tokens("params.bias_ids", result.bias_ids, num_biases, vocab);
  return result;
}

const float* logits_of(const ArrayView& logits) {
  logits.expect_ndim(2);
  if (logits.size(1) == 0) throw ArgumentError("logits: the vocabulary is empty");
  return logits.data<float>();
}

}  // namespace

SampleArgs sample_args(const ArrayView& logits, const SamplingViews& params,
                       const ArrayView* block_maxima) {
  const float* values = logits_of(logits);
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  const float* maxima = optional_input<float>(block_maxima, {rows, num_token_blocks(vocab)});
  return {values, maxima, rows, vocab, rows_of(params, rows, vocab), nullptr, nullptr};
}

LawArgs law_args(const ArrayView& logits, const SamplingViews& params) {
  const float* values = logits_of(logits);
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  return {values, rows, vocab, rows_of(params, rows, vocab), nullptr, nullptr};
}

LogprobsArgs logprobs_args(const ArrayView& logits, const ArrayView& token_ids, int64_t num_top) {
  LogprobsArgs args = {};
  args.logits = logits_of(logits);
  args.rows = logits.size(0);
  args.vocab = logits.size(1);
  args.num_top = num_top;
  if (num_top < 0 || num_top > args.vocab) {
    throw ArgumentError("num_top: must be between 0 and the vocabulary's size, " +
                        std::to_string(args.vocab) + ", got " + std::to_string(num_top));
  }
  args.token_ids = input<int32_t>(token_ids, {args.rows});
  expect_tokens("token_ids", args.token_ids, args.rows, args.vocab);
  return args;
}

}  // namespace fdspec
