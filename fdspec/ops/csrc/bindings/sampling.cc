// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampling.h"

#include <string>

#include "bindings/array.h"
#include "bindings/registry.h"
#include "common/workspace.h"

namespace fdspec {
namespace {

char* workspace_for(int num_slices, int64_t vocab) {
  return static_cast<char*>(thread_workspace(num_slices * sampling_workspace_bytes(vocab)));
}

[[noreturn]] void fail(const std::string& name, int64_t row, const std::string& problem) {
  throw py::value_error("params." + name + "[" + std::to_string(row) + "]: " + problem);
}

// Checks that splits cut [0, count) into one range for each row.
void expect_splits(const char* name, const int64_t* splits, int64_t rows, int64_t count) {
  for (int64_t row = 0; row < rows; ++row) {
    if (splits[row] > splits[row + 1]) fail(name, row, "splits must not decrease");
  }
  if (splits[0] != 0 || splits[rows] != count) {
    throw py::value_error("params." + std::string(name) + ": must run from 0 to " +
                          std::to_string(count));
  }
}

void expect_tokens(const char* name, const int32_t* ids, int64_t count, int64_t vocab) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    throw py::value_error(std::string(name) + "[" + std::to_string(i) + "]: token " +
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

// A field of fdspec.ops.RowParams.
template <class T>
const T* field(py::handle params, const char* name, std::initializer_list<int64_t> shape,
               int64_t* size = nullptr) {
  const py::object value = params.attr(name);
  const Array array(value, name);
  array.expect_shape(shape);
  if (size != nullptr) *size = array.size(0);
  return array.data<T>();
}

SamplingRows read_params(py::handle params, int64_t rows, int64_t vocab) {
  SamplingRows result;
  result.temperature = field<float>(params, "temperature", {rows});
  result.top_k = field<int32_t>(params, "top_k", {rows});
  result.top_p = field<float>(params, "top_p", {rows});
  result.min_p = field<float>(params, "min_p", {rows});
  result.seed = field<uint64_t>(params, "seed", {rows});
  result.choice = field<uint32_t>(params, "choice", {rows});
  result.position = field<uint32_t>(params, "position", {rows});
  result.repetition_penalty = field<float>(params, "repetition_penalty", {rows});
  result.presence_penalty = field<float>(params, "presence_penalty", {rows});
  result.frequency_penalty = field<float>(params, "frequency_penalty", {rows});
  int64_t num_counts = 0, num_biases = 0;
  result.count_ids = field<int32_t>(params, "count_ids", {kAnySize}, &num_counts);
  result.output_counts = field<int32_t>(params, "output_counts", {num_counts});
  result.in_prompt = field<uint8_t>(params, "in_prompt", {num_counts});
  result.count_splits = field<int64_t>(params, "count_splits", {rows + 1});
  result.bias_ids = field<int32_t>(params, "bias_ids", {kAnySize}, &num_biases);
  result.bias_values = field<float>(params, "bias_values", {num_biases});
  result.bias_splits = field<int64_t>(params, "bias_splits", {rows + 1});
  result.mask_words = (vocab + 31) / 32;
  result.mask = params.attr("mask").is_none()
                    ? nullptr
                    : field<uint32_t>(params, "mask", {rows, result.mask_words});
  expect_ranges(result, rows);
  expect_splits("count_splits", result.count_splits, rows, num_counts);
  expect_splits("bias_splits", result.bias_splits, rows, num_biases);
  expect_tokens("params.count_ids", result.count_ids, num_counts, vocab);
  expect_tokens("params.bias_ids", result.bias_ids, num_biases, vocab);
  return result;
}

Array read_logits(py::handle logits) {
  const Array array(logits, "logits");
  array.expect_ndim(2);
  if (array.size(1) == 0) throw py::value_error("logits: the vocabulary is empty");
  return array;
}

py::object bind_sample_rows(py::handle logits, py::handle params) {
  const Array array = read_logits(logits);
  SampleArgs args;
  args.logits = array.data<float>();
  args.rows = array.size(0);
  args.vocab = array.size(1);
  args.params = read_params(params, args.rows, args.vocab);
  py::object chosen = array.new_like({args.rows}, DType::kInt32);
  args.chosen = Array(chosen, "chosen").mutable_data<int32_t>();
  {
    const py::gil_scoped_release release;
    const int num_slices = sampling_slices(args.rows, args.vocab);
    args.workspace = workspace_for(num_slices, args.vocab);
    run_sample_rows(args, num_slices);
  }
  return chosen;
}

py::object bind_processed_probabilities(py::handle logits, py::handle params) {
  const Array array = read_logits(logits);
  LawArgs args;
  args.logits = array.data<float>();
  args.rows = array.size(0);
  args.vocab = array.size(1);
  args.params = read_params(params, args.rows, args.vocab);
  py::object law = array.new_like({args.rows, args.vocab});
  args.law = Array(law, "law").mutable_data<float>();
  {
    const py::gil_scoped_release release;
    const int num_slices = sampling_slices(args.rows, args.vocab);
    args.workspace = workspace_for(num_slices, args.vocab);
    run_processed_probabilities(args, num_slices);
  }
  return law;
}

py::tuple bind_row_logprobs(py::handle logits, py::handle token_ids, int64_t num_top) {
  const Array array = read_logits(logits);
  LogprobsArgs args;
  args.logits = array.data<float>();
  args.rows = array.size(0);
  args.vocab = array.size(1);
  args.num_top = num_top;
  if (num_top < 0 || num_top > args.vocab) {
    throw py::value_error("num_top: must be between 0 and the vocabulary's size, " +
                          std::to_string(args.vocab) + ", got " + std::to_string(num_top));
  }
  args.token_ids = input<int32_t>(Array(token_ids, "token_ids"), {args.rows});
  expect_tokens("token_ids", args.token_ids, args.rows, args.vocab);
  py::object logprob = array.new_like({args.rows});
  py::object rank = array.new_like({args.rows}, DType::kInt32);
  py::object top_ids = array.new_like({args.rows, num_top}, DType::kInt32);
  py::object top_logprobs = array.new_like({args.rows, num_top});
  args.logprob = Array(logprob, "logprob").mutable_data<float>();
  args.rank = Array(rank, "rank").mutable_data<int32_t>();
  args.top_ids = Array(top_ids, "top_ids").mutable_data<int32_t>();
  args.top_logprobs = Array(top_logprobs, "top_logprobs").mutable_data<float>();
  {
    const py::gil_scoped_release release;
    const int num_slices = sampling_slices(args.rows, args.vocab);
    args.workspace = workspace_for(num_slices, args.vocab);
    run_row_logprobs(args, num_slices);
  }
  return py::make_tuple(logprob, rank, top_ids, top_logprobs);
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(sampling) {
  module.def("sample_rows", &fdspec::bind_sample_rows);
  module.def("processed_probabilities", &fdspec::bind_processed_probabilities);
  module.def("row_logprobs", &fdspec::bind_row_logprobs);
}
