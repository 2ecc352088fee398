// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>
#include <vector>

#include "bindings/array.h"
#include "bindings/registry.h"
#include "speculation/ngram.h"
#include "speculation/verify.h"

namespace fdspec {
namespace {

// Checks [sequences + 1] splits over `count` elements and returns the number of sequences.
int64_t expect_splits(const Array& splits, int64_t count) {
  splits.expect_ndim(1);
  const int64_t sequences = splits.size(0) - 1;
  const int64_t* values = splits.data<int64_t>();
  bool is_good = sequences >= 0 && values[0] == 0 && values[sequences] == count;
  for (int64_t i = 0; is_good && i < sequences; ++i) is_good = values[i] <= values[i + 1];
  if (!is_good) {
    throw py::value_error(std::string(splits.name()) + ": must rise from 0 to " +
                          std::to_string(count) + ", one entry more than there are sequences");
  }
  return sequences;
}

// Copies a vector into an array of the kind of `like`.
template <class T>
py::object to_array(const std::vector<T>& values, const Array& like) {
  const auto size = static_cast<int64_t>(values.size());
  py::object result = like.new_like({size}, dtype_of<T>());
  if (size > 0) {
    std::memcpy(Array(result, "result").mutable_data<T>(), values.data(),
                values.size() * sizeof(T));
  }
  return result;
}

py::tuple bind_ngram_match(py::handle tokens, py::handle splits, py::handle max_draft,
                           int64_t max_ngram, int64_t min_ngram) {
  const Array token_array(tokens, "tokens"), split_array(splits, "splits");
  token_array.expect_ndim(1);
  const int32_t* token_data = token_array.data<int32_t>();
  const int64_t sequences = expect_splits(split_array, token_array.size(0));
  const int64_t* split_data = split_array.data<int64_t>();
  const int32_t* limits = input<int32_t>(Array(max_draft, "max_draft"), {sequences});
  if (min_ngram < 1 || max_ngram < min_ngram) {
    throw py::value_error("min_ngram, max_ngram: must be 1 <= min_ngram <= max_ngram, got " +
                          std::to_string(min_ngram) + " and " + std::to_string(max_ngram));
  }
  std::vector<int32_t> drafts;
  std::vector<int64_t> draft_splits{0};
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t limit = limits[i] > 0 ? limits[i] : 0;
    const size_t before = drafts.size();
    drafts.resize(before + static_cast<size_t>(limit));
    const int64_t length =
        ngram_draft(token_data + split_data[i], split_data[i + 1] - split_data[i],
                    {max_ngram, min_ngram}, limit, drafts.data() + before);
    drafts.resize(before + static_cast<size_t>(length));
    draft_splits.push_back(static_cast<int64_t>(drafts.size()));
  }
  return py::make_tuple(to_array(drafts, token_array), to_array(draft_splits, token_array));
}

void expect_parents(const int32_t* parents, const int64_t* splits, int64_t sequences) {
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    for (int64_t i = splits[sequence]; i < splits[sequence + 1]; ++i) {
      if (parents[i] >= -1 && parents[i] < i - splits[sequence]) continue;
      throw py::value_error("parents[" + std::to_string(i) + "]: must be -1 or an earlier token " +
                            "of the same draft, got " + std::to_string(parents[i]));
    }
  }
}

// `parents` is None for chains.
py::tuple bind_verify(py::handle draft_tokens, py::handle parents, py::handle targets,
                      py::handle draft_splits) {
  const Array token_array(draft_tokens, "draft_tokens"), split_array(draft_splits, "draft_splits");
  token_array.expect_ndim(1);
  const int64_t total = token_array.size(0);
  const int32_t* token_data = token_array.data<int32_t>();
  const int64_t sequences = expect_splits(split_array, total);
  const int64_t* split_data = split_array.data<int64_t>();
  const int32_t* parent_data = optional_input<int32_t>(parents, "parents", {total});
  if (parent_data != nullptr) expect_parents(parent_data, split_data, sequences);
  const int32_t* target_data = input<int32_t>(Array(targets, "targets"), {total + sequences});
  std::vector<int32_t> accepted(static_cast<size_t>(total)), num_accepted, next_tokens;
  std::vector<int64_t> splits{0};
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t first = split_data[i];
    int32_t next_token = 0;
    const int64_t count =
        verify_draft(token_data + first, parent_data == nullptr ? nullptr : parent_data + first,
                     split_data[i + 1] - first, target_data + first + i,
                     accepted.data() + splits.back(), &next_token);
    splits.push_back(splits.back() + count);
    num_accepted.push_back(static_cast<int32_t>(count));
    next_tokens.push_back(next_token);
  }
  accepted.resize(static_cast<size_t>(splits.back()));
  return py::make_tuple(to_array(accepted, token_array), to_array(splits, token_array),
                        to_array(num_accepted, token_array), to_array(next_tokens, token_array));
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(speculation) {
  module.def("ngram_match", &fdspec::bind_ngram_match);
  module.def("verify", &fdspec::bind_verify);
}
