// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of the sampling ops and fills in all but outputs and workspace.
#pragma once

#include "common/array_view.h"
#include "sampling/sampling.h"

namespace fdspec {

// The fields of fdspec.ops.RowParams, each under its own name.
struct SamplingViews {
  ArrayView temperature, top_k, top_p, min_p, seed, choice, position;
  ArrayView repetition_penalty, presence_penalty, frequency_penalty;
  ArrayView count_splits, count_ids, output_counts, in_prompt;
  ArrayView bias_splits, bias_ids, bias_values;
  const ArrayView* mask;  // or null
};

// block_maxima: as SampleArgs has it, or null.
FDSPEC_EXPORT SampleArgs sample_args(const ArrayView& logits, const SamplingViews& params,
                                     const ArrayView* block_maxima = nullptr);

FDSPEC_EXPORT LawArgs law_args(const ArrayView& logits, const SamplingViews& params);

FDSPEC_EXPORT LogprobsArgs logprobs_args(const ArrayView& logits, const ArrayView& token_ids,
                                         int64_t num_top);

}  // namespace fdspec
