// SPDX-License-Identifier: Apache-2.0
#include "bindings/array.h"
#include "bindings/registry.h"
#include "common/workspace.h"
#include "sampling/arguments.h"

namespace fdspec {
namespace {

// The name of a field, also as a Python object, so that reading the field makes none.
struct FieldName {
  const char* text;
  py::str object{text};
};

// The fields of a fdspec.ops.RowParams.
struct FieldNames {
  FieldName temperature{"temperature"}, top_k{"top_k"}, top_p{"top_p"}, min_p{"min_p"},
      seed{"seed"}, choice{"choice"}, position{"position"},
      repetition_penalty{"repetition_penalty"}, presence_penalty{"presence_penalty"},
      frequency_penalty{"frequency_penalty"}, count_splits{"count_splits"}, count_ids{"count_ids"},
      output_counts{"output_counts"}, in_prompt{"in_prompt"}, bias_splits{"bias_splits"},
      bias_ids{"bias_ids"}, bias_values{"bias_values"}, mask{"mask"};

  static const FieldNames& instance() {
    static const FieldNames* const names = new FieldNames;
    return *names;
  }
};

// The arrays of a fdspec.ops.RowParams; the object must outlive it.
class ParamViews {
 public:
  explicit ParamViews(py::handle params, const FieldNames& names = FieldNames::instance())
      : mask_(params.attr(names.mask.object), names.mask.text),
        views_{field(params, names.temperature),
               field(params, names.top_k),
               field(params, names.top_p),
               field(params, names.min_p),
               field(params, names.seed),
               field(params, names.choice),
               field(params, names.position),
               field(params, names.repetition_penalty),
               field(params, names.presence_penalty),
               field(params, names.frequency_penalty),
               field(params, names.count_splits),
               field(params, names.count_ids),
               field(params, names.output_counts),
               field(params, names.in_prompt),
               field(params, names.bias_splits),
               field(params, names.bias_ids),
               field(params, names.bias_values),
               mask_.view()} {}
  const SamplingViews& views() const { return views_; }

 private:
  static ArrayView field(py::handle params, const FieldName& name) {
    return Array(py::object(params.attr(name.object)), name.text);
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

py::object bind_sample_rows(py::handle logits, py::handle params, py::handle block_maxima) {
  const Array array(logits, "logits");
  const OptionalArray maxima(block_maxima, "block_maxima");
  SampleArgs args = sample_args(array, ParamViews(params).views(), maxima.view());
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
