// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "bindings/array.h"
#include "bindings/registry.h"
#include "speculation/batch.h"

namespace fdspec {
namespace {

// Copies a vector into an array of the kind of `like`.
template <class T>
py::object to_array(const std::vector<T>& values, const Array& like) {
  T* address = nullptr;
  py::object result = new_output(like, {static_cast<int64_t>(values.size())}, &address);
  if (!values.empty()) std::memcpy(address, values.data(), values.size() * sizeof(T));
  return result;
}

py::tuple bind_ngram_match(py::handle tokens, py::handle splits, py::handle max_draft,
                           int64_t max_ngram, int64_t min_ngram) {
  const Array array(tokens, "tokens");
  const DraftBatch batch = ngram_match(array, Array(splits, "splits"),
                                       Array(max_draft, "max_draft"), {max_ngram, min_ngram});
  return py::make_tuple(to_array(batch.tokens, array), to_array(batch.splits, array));
}

// `parents` is None for chains.
py::tuple bind_verify(py::handle draft_tokens, py::handle parents, py::handle targets,
                      py::handle draft_splits) {
  const Array array(draft_tokens, "draft_tokens");
  const VerifiedBatch batch =
      verify_drafts(array, OptionalArray(parents, "parents").view(), Array(targets, "targets"),
                    Array(draft_splits, "draft_splits"));
  return py::make_tuple(to_array(batch.accepted, array), to_array(batch.splits, array),
                        to_array(batch.num_accepted, array), to_array(batch.next_tokens, array));
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(speculation) {
  module.def("ngram_match", &fdspec::bind_ngram_match);
  module.def("verify", &fdspec::bind_verify);
}
