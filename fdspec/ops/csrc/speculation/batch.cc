// SPDX-License-Identifier: Apache-2.0
#include "speculation/batch.h"

#include <string>

#include "speculation/verify.h"

namespace fdspec {
namespace {

// Checks [sequences + 1] splits over `count` elements and returns the number of sequences.
int64_t expect_splits(const ArrayView& splits, int64_t count) {
  splits.expect_ndim(1);
  const int64_t sequences = splits.size(0) - 1;
  const int64_t* values = splits.data<int64_t>();
  bool is_good = sequences >= 0 && values[0] == 0 && values[sequences] == count;
  for (int64_t i = 0; is_good && i < sequences; ++i) is_good = values[i] <= values[i + 1];
  if (!is_good) {
    throw ArgumentError(std::string(splits.name()) + ": must rise from 0 to " +
                        std::to_string(count) + ", one entry more than there are sequences");
  }
  return sequences;
}

void expect_parents(const int32_t* parents, const int64_t* splits, int64_t sequences) {
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    for (int64_t i = splits[sequence]; i < splits[sequence + 1]; ++i) {
      if (parents[i] >= -1 && parents[i] < i - splits[sequence]) continue;
      throw ArgumentError("parents[" + std::to_string(i) + "]: must be -1 or an earlier token " +
                          "of the same draft, got " + std::to_string(parents[i]));
    }
  }
}

}  // namespace

DraftBatch ngram_match(const ArrayView& tokens, const ArrayView& splits, const ArrayView& max_draft,
                       NgramLimits limits) {
  const int32_t* token_data = input<int32_t>(tokens, {kAnySize});
  const int64_t sequences = expect_splits(splits, tokens.size(0));
  const int64_t* split_data = splits.data<int64_t>();
  const int32_t* max_lengths = input<int32_t>(max_draft, {sequences});
  expect_limits(limits);
  DraftBatch batch{{}, {0}};
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t max_length = max_lengths[i] > 0 ? max_lengths[i] : 0;
    const size_t before = batch.tokens.size();
    batch.tokens.resize(before + static_cast<size_t>(max_length));
    const int64_t length =
        ngram_draft(token_data + split_data[i], split_data[i + 1] - split_data[i], limits,
                    max_length, batch.tokens.data() + before);
    batch.tokens.resize(before + static_cast<size_t>(length));
    batch.splits.push_back(static_cast<int64_t>(batch.tokens.size()));
  }
  return batch;
}

VerifiedBatch verify_drafts(const ArrayView& draft_tokens, const ArrayView* parents,
                            const ArrayView& targets, const ArrayView& draft_splits) {
  const int32_t* token_data = input<int32_t>(draft_tokens, {kAnySize});
  const int64_t total = draft_tokens.size(0);
  const int64_t sequences = expect_splits(draft_splits, total);
  const int64_t* split_data = draft_splits.data<int64_t>();
  const int32_t* parent_data = optional_input<int32_t>(parents, {total});
  if (parent_data != nullptr) expect_parents(parent_data, split_data, sequences);
  const int32_t* target_data = input<int32_t>(targets, {total + sequences});
  VerifiedBatch batch{std::vector<int32_t>(static_cast<size_t>(total)), {0}, {}, {}};
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t first = split_data[i];
    int32_t next_token = 0;
    const int64_t count =
        verify_draft(token_data + first, parent_data == nullptr ? nullptr : parent_data + first,
                     split_data[i + 1] - first, target_data + first + i,
                     batch.accepted.data() + batch.splits.back(), &next_token);
    batch.splits.push_back(batch.splits.back() + count);
    batch.num_accepted.push_back(static_cast<int32_t>(count));
    batch.next_tokens.push_back(next_token);
  }
  batch.accepted.resize(static_cast<size_t>(batch.splits.back()));
  return batch;
}

}  // namespace fdspec
