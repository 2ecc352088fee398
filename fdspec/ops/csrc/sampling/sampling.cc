// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampling.h"

#include "sampling/block_maxima.h"
#include "sampling/candidates.h"

namespace fdspec {
namespace {

// Logits that are worth waking a thread for.
constexpr int64_t kMinLogitsPerSlice = 32768;
constexpr int64_t kLineBytes = 64;
// Candidates are written a vector at a time.
constexpr int64_t kSpareCandidates = 16;

int64_t whole_lines(int64_t num_bytes) {
  return (num_bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

}  // namespace

SamplingWorkspace::SamplingWorkspace(int64_t vocab) {
  const int64_t blocks = num_token_blocks(vocab);
  maxima = whole_lines(vocab * static_cast<int64_t>(sizeof(float)));
  is_patched = maxima + whole_lines(blocks * static_cast<int64_t>(sizeof(float)));
  candidates = is_patched + whole_lines(blocks);
  num_bytes = candidates +
              whole_lines((vocab + kSpareCandidates) * static_cast<int64_t>(sizeof(Candidate)));
}

int64_t sampling_workspace_bytes(int64_t vocab) { return SamplingWorkspace(vocab).num_bytes; }

int sampling_slices(int64_t rows, int64_t vocab) {
  const int64_t slices = slices_for(rows * vocab, kMinLogitsPerSlice);
  return static_cast<int>(slices < rows || rows == 0 ? slices : rows);
}

void run_sample_rows(const SampleArgs& args, int num_slices) {
  launch(sample_rows_kernel(), args, num_slices);
}

void run_processed_probabilities(const LawArgs& args, int num_slices) {
  launch(processed_probabilities_kernel(), args, num_slices);
}

void run_row_logprobs(const LogprobsArgs& args, int num_slices) {
  launch(row_logprobs_kernel(), args, num_slices);
}

}  // namespace fdspec
