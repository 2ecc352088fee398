// SPDX-License-Identifier: Apache-2.0
#include "attention/arguments.h"
#include "bindings/array.h"
#include "bindings/registry.h"

namespace fdspec {
namespace {

void bind_append_paged_kv(py::handle key, py::handle value, py::handle key_cache,
                          py::handle value_cache, py::handle slots) {
  const AppendArgs args =
      append_args(Array(key, "key"), Array(value, "value"), Array(key_cache, "key_cache"),
                  Array(value_cache, "value_cache"), Array(slots, "slots"));
  without_gil([&] { run_append_paged_kv(args); });
}

void bind_compact_kv(py::handle key_cache, py::handle value_cache, py::handle source_slots,
                     py::handle destination_slots) {
  const CompactArgs args = compact_args(
      Array(key_cache, "key_cache"), Array(value_cache, "value_cache"),
      Array(source_slots, "source_slots"), Array(destination_slots, "destination_slots"));
  without_gil([&] { run_compact_kv(args); });
}

py::object bind_attention(py::handle query, py::handle key_cache, py::handle value_cache,
                          py::handle block_table, py::handle row_splits, py::handle context_lens,
                          py::handle parents, float scale) {
  const Array query_array(query, "query");
  AttentionArgs args =
      attention_args(query_array, Array(key_cache, "key_cache"), Array(value_cache, "value_cache"),
                     Array(block_table, "block_table"), Array(row_splits, "row_splits"),
                     Array(context_lens, "context_lens"), Array(parents, "parents"), scale);
  py::object out = new_output(
      query_array, {args.rows.num_rows, args.shape.num_heads * args.shape.head_dim}, &args.out);
  without_gil([&] { run_unplanned_attention(args); });
  return out;
}

py::tuple bind_merge_attention_states(py::handle output_a, py::handle lse_a, py::handle output_b,
                                      py::handle lse_b) {
  const Array first(output_a, "output_a");
  MergeStatesArgs args = merge_states_args(first, Array(lse_a, "lse_a"),
                                           Array(output_b, "output_b"), Array(lse_b, "lse_b"));
  py::object out = new_output(first, {first.size(0), first.size(1), first.size(2)}, &args.out);
  py::object lse = new_output(first, {first.size(0), first.size(1)}, &args.lse);
  without_gil([&] { run_merge_attention_states(args); });
  return py::make_tuple(out, lse);
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(attention) {
  module.def("append_paged_kv", &fdspec::bind_append_paged_kv);
  module.def("compact_kv", &fdspec::bind_compact_kv);
  module.def("cascade_append_attention", &fdspec::bind_attention);
  module.def("merge_attention_states", &fdspec::bind_merge_attention_states);
}
