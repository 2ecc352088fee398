// SPDX-License-Identifier: Apache-2.0
// The indexes that proposers keep between steps, as Python classes.
#include <pybind11/numpy.h>

#include <cstring>
#include <vector>

#include "bindings/array.h"
#include "bindings/registry.h"
#include "speculation/ngram_index.h"
#include "speculation/prediction.h"
#include "speculation/suffix_tree.h"

namespace fdspec {
namespace {

py::array_t<int32_t> to_numpy(const std::vector<int32_t>& values) {
  py::array_t<int32_t> array(static_cast<py::ssize_t>(values.size()));
  if (!values.empty()) {
    std::memcpy(array.mutable_data(), values.data(), values.size() * sizeof(int32_t));
  }
  return array;
}

NgramIndex make_ngram_index(int64_t max_ngram, int64_t min_ngram) {
  const NgramLimits limits{max_ngram, min_ngram};
  expect_limits(limits);
  return NgramIndex(limits);
}

py::array_t<int32_t> bind_ngram_draft(const NgramIndex& index, int64_t max_draft) {
  std::vector<int32_t> draft(static_cast<size_t>(max_draft > 0 ? max_draft : 0));
  draft.resize(static_cast<size_t>(index.draft(max_draft, draft.data())));
  return to_numpy(draft);
}

SuffixTree make_suffix_tree(int64_t max_depth, int64_t prompt_weight) {
  if (max_depth < 1) throw ArgumentError("max_depth: must be at least 1");
  if (prompt_weight < 1) throw ArgumentError("prompt_weight: must be at least 1");
  return SuffixTree(max_depth, prompt_weight);
}

py::tuple to_tuple(const DraftTree& draft) {
  return py::make_tuple(to_numpy(draft.tokens), to_numpy(draft.parents), draft.score,
                        draft.match_length);
}

py::array_t<int32_t> bind_prediction_draft(py::handle prediction, py::handle output,
                                           int64_t max_draft) {
  const Array text(prediction, "prediction"), tokens(output, "output");
  const int32_t* text_data = input<int32_t>(text, {kAnySize});
  const int32_t* token_data = input<int32_t>(tokens, {kAnySize});
  const int64_t start = prediction_match(text_data, text.size(0), token_data, tokens.size(0));
  if (start < 0 || max_draft <= 0) return to_numpy({});
  const int64_t end = std::min(start + max_draft, text.size(0));
  return to_numpy(std::vector<int32_t>(text_data + start, text_data + end));
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(draft_state) {
  using fdspec::Array;
  using fdspec::NgramIndex;
  using fdspec::SuffixTree;
  namespace py = pybind11;
  py::class_<NgramIndex>(module, "NgramIndex")
      .def(py::init(&fdspec::make_ngram_index))
      .def("follow",
           [](NgramIndex& index, py::handle tokens) {
             const Array array(tokens, "tokens");
             const int32_t* data = fdspec::input<int32_t>(array, {fdspec::kAnySize});
             index.follow(data, array.size(0));
           })
      .def("draft", &fdspec::bind_ngram_draft)
      .def("check", &NgramIndex::check)
      .def_property_readonly("length", &NgramIndex::length)
      .def_property_readonly("num_bytes", &NgramIndex::num_bytes);
  py::class_<SuffixTree>(module, "SuffixTree")
      .def(py::init(&fdspec::make_suffix_tree))
      .def("add_text", &SuffixTree::add_text)
      .def("follow",
           [](SuffixTree& tree, int32_t text, py::handle tokens) {
             const Array array(tokens, "tokens");
             const int32_t* data = fdspec::input<int32_t>(array, {fdspec::kAnySize});
             return tree.follow(text, data, array.size(0));
           })
      .def("finish", &SuffixTree::finish)
      .def("remove", &SuffixTree::remove)
      .def("draft_chain",
           [](const SuffixTree& tree, int32_t text, int64_t max_tokens, double factor,
              double min_probability) {
             return fdspec::to_tuple(tree.draft_chain(text, max_tokens, factor, min_probability));
           })
      .def("draft_tree",
           [](const SuffixTree& tree, int32_t text, int64_t max_tokens, double min_probability) {
             return fdspec::to_tuple(tree.draft_tree(text, max_tokens, min_probability));
           })
      .def("length", [](const SuffixTree& tree, int32_t text) { return tree.tokens(text).size(); })
      .def("tokens",
           [](const SuffixTree& tree, int32_t text) { return fdspec::to_numpy(tree.tokens(text)); })
      .def("check", &SuffixTree::check)
      .def_property_readonly("num_nodes", &SuffixTree::num_nodes)
      .def_property_readonly("num_bytes", &SuffixTree::num_bytes);
  module.def("prediction_draft", &fdspec::bind_prediction_draft);
}
