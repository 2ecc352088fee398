// SPDX-License-Identifier: Apache-2.0
#include "bindings/array.h"
#include "bindings/registry.h"
#include "common/workspace.h"
#include "sampling/arguments.h"

namespace fdspec {
namespace {

// The arrays of a fdspec.ops.RowParams; the object must outlive it.
class ParamViews {
 public:
  explicit ParamViews(py::handle params)
      : mask_(params.attr("mask"), "mask"),
        views_{field(params, "temperature"),
               field(params, "top_k"),
               field(params, "top_p"),
               field(params, "min_p"),
               field(params, "seed"),
               field(params, "choice"),
               field(params, "position"),
               field(params, "repetition_penalty"),
               field(params, "presence_penalty"),
               field(params, "frequency_penalty"),
               field(params, "count_splits"),
               field(params, "count_ids"),
               field(params, "output_counts"),
               field(params, "in_prompt"),
               field(params, "bias_splits"),
               field(params, "bias_ids"),
               field(params, "bias_values"),
               mask_.view()} {}
  const SamplingViews& views() const { return views_; }

 private:
  static ArrayView field(py::handle params, const char* name) {
    return Array(py::object(params.attr(name)), name);
  }

  OptionalArray mask_;
  SamplingViews views_;
};

template <class Args, class Run>
void run_with_workspace(Args* args, Run run) {
  without_gil([&] {
    const int num_slices = sampling_slices(args->rows, args->vocab);
    args->workspace =
        static_cast<char*>(thread_workspace(num_slices * sampling_workspace_bytes(args->vocab)));
    run(*args, num_slices);
  });
}

py::object bind_sample_rows(py::handle logits, py::handle params) {
  const Array array(logits, "logits");
  SampleArgs args = sample_args(array, ParamViews(params).views());
  py::object chosen = new_output(array, {args.rows}, &args.chosen);
  run_with_workspace(&args, run_sample_rows);
  return chosen;
}

py::object bind_processed_probabilities(py::handle logits, py::handle params) {
  const Array array(logits, "logits");
  LawArgs args = law_args(array, ParamViews(params).views());
  py::object law = new_output(array, {args.rows, args.vocab}, &args.law);
  run_with_workspace(&args, run_processed_probabilities);
  return law;
}

py::tuple bind_row_logprobs(py::handle logits, py::handle token_ids, int64_t num_top) {
  const Array array(logits, "logits");
  LogprobsArgs args = logprobs_args(array, Array(token_ids, "token_ids"), num_top);
  py::object logprob = new_output(array, {args.rows}, &args.logprob);
  py::object rank = new_output(array, {args.rows}, &args.rank);
  py::object top_ids = new_output(array, {args.rows, num_top}, &args.top_ids);
  py::object top_logprobs = new_output(array, {args.rows, num_top}, &args.top_logprobs);
  run_with_workspace(&args, run_row_logprobs);
  return py::make_tuple(logprob, rank, top_ids, top_logprobs);
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(sampling) {
  module.def("sample_rows", &fdspec::bind_sample_rows);
  module.def("processed_probabilities", &fdspec::bind_processed_probabilities);
  module.def("row_logprobs", &fdspec::bind_row_logprobs);
}
