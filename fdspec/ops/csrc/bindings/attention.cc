// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include <string>

#include "attention/merge_states.h"
#include "attention/paged_cache.h"
#include "bindings/array.h"
#include "bindings/registry.h"
#include "common/workspace.h"

namespace fdspec {
namespace {

PagedCache bind_cache(const Array& key_cache, const Array& value_cache, bool writes) {
  key_cache.expect_dtype({DType::kFloat32, DType::kBFloat16}).expect_ndim(4);
  value_cache.expect_dtype({key_cache.dtype()})
      .expect_shape({key_cache.size(0), key_cache.size(1), key_cache.size(2), key_cache.size(3)});
  if (writes) {
    key_cache.expect_writable();
    value_cache.expect_writable();
  }
  PagedCache cache;
  cache.key = key_cache.address();
  cache.value = value_cache.address();
  cache.is_bf16 = key_cache.dtype() == DType::kBFloat16;
  cache.num_blocks = key_cache.size(0);
  cache.num_kv_heads = static_cast<int>(key_cache.size(1));
  cache.block_size = static_cast<int>(key_cache.size(2));
  cache.head_dim = static_cast<int>(key_cache.size(3));
  return cache;
}

void expect_slots(const char* name, const int64_t* slots, int64_t count, int64_t lowest,
                  const PagedCache& cache) {
  for (int64_t i = 0; i < count; ++i) {
    if (slots[i] >= lowest && slots[i] < cache.num_slots()) continue;
    throw py::value_error(std::string(name) + ": slot " + std::to_string(slots[i]) +
                          " is outside the cache, " + std::to_string(lowest) + " .. " +
                          std::to_string(cache.num_slots() - 1));
  }
}

void bind_append_paged_kv(py::handle key, py::handle value, py::handle key_cache,
                          py::handle value_cache, py::handle slots) {
  AppendArgs args;
  args.cache = bind_cache(Array(key_cache, "key_cache"), Array(value_cache, "value_cache"), true);
  const Array key_array(key, "key");
  key_array.expect_shape({kAnySize, args.cache.num_kv_heads, args.cache.head_dim});
  args.rows = key_array.size(0);
  args.key = key_array.data<float>();
  args.value = input<float>(Array(value, "value"),
                            {args.rows, args.cache.num_kv_heads, args.cache.head_dim});
  args.slots = input<int64_t>(Array(slots, "slots"), {args.rows});
  expect_slots("slots", args.slots, args.rows, -1, args.cache);
  const py::gil_scoped_release release;
  run_append_paged_kv(args);
}

void bind_compact_kv(py::handle key_cache, py::handle value_cache, py::handle source_slots,
                     py::handle destination_slots) {
  CompactArgs args;
  args.cache = bind_cache(Array(key_cache, "key_cache"), Array(value_cache, "value_cache"), true);
  const Array sources(source_slots, "source_slots");
  sources.expect_ndim(1);
  args.count = sources.size(0);
  args.source_slots = sources.data<int64_t>();
  args.destination_slots =
      input<int64_t>(Array(destination_slots, "destination_slots"), {args.count});
  expect_slots("source_slots", args.source_slots, args.count, 0, args.cache);
  expect_slots("destination_slots", args.destination_slots, args.count, 0, args.cache);
  const py::gil_scoped_release release;
  run_compact_kv(args);
}

// Every slot that the rows need must have a block in the table.
void expect_blocks(const AttentionArgs& args) {
  const int block_size = args.cache.block_size;
  for (int sequence = 0; sequence < args.rows.num_sequences; ++sequence) {
    const int num_rows = args.rows.row_splits[sequence + 1] - args.rows.row_splits[sequence];
    if (num_rows == 0) continue;
    const int64_t num_slots = int64_t{args.rows.context_lens[sequence]} + num_rows;
    const int64_t num_blocks = (num_slots + block_size - 1) / block_size;
    const std::string of_sequence = " of sequence " + std::to_string(sequence);
    if (num_blocks > args.max_blocks) {
      throw py::value_error("block_table: the " + std::to_string(num_slots) + " tokens" +
                            of_sequence + " need " + std::to_string(num_blocks) +
                            " blocks, the table has " + std::to_string(args.max_blocks));
    }
    const int32_t* blocks = args.block_table + sequence * args.max_blocks;
    for (int64_t i = 0; i < num_blocks; ++i) {
      if (blocks[i] >= 0 && blocks[i] < args.cache.num_blocks) continue;
      throw py::value_error("block_table: block " + std::to_string(blocks[i]) + of_sequence +
                            " is outside the cache, 0 .. " +
                            std::to_string(args.cache.num_blocks - 1));
    }
  }
}

void run_attention(AttentionArgs& args) {
  const py::gil_scoped_release release;
  const AttentionPlan plan(args.rows, args.shape);
  const int num_slices = plan.num_slices();
  args.plan = &plan;
  args.workspace = static_cast<float*>(
      thread_workspace(attention_workspace_bytes(plan, args.shape, num_slices)));
  run_cascade_append_attention(args, num_slices);
}

py::object bind_attention(py::handle query, py::handle key_cache, py::handle value_cache,
                          py::handle block_table, py::handle row_splits, py::handle context_lens,
                          py::handle parents, float scale) {
  AttentionArgs args;
  args.cache = bind_cache(Array(key_cache, "key_cache"), Array(value_cache, "value_cache"), false);
  const Array query_array(query, "query");
  query_array.expect_shape({kAnySize, kAnySize, args.cache.head_dim});
  const int64_t rows = query_array.size(0), heads = query_array.size(1);
  args.query = query_array.data<float>();
  args.shape = {static_cast<int>(heads), args.cache.num_kv_heads, args.cache.head_dim};
  if (args.cache.num_kv_heads == 0 || heads % args.cache.num_kv_heads != 0) {
    throw py::value_error("query: " + std::to_string(heads) + " heads are no multiple of the " +
                          std::to_string(args.cache.num_kv_heads) + " heads of key_cache");
  }
  if (args.cache.head_dim % 8 != 0 || args.cache.block_size == 0) {
    throw py::value_error("key_cache: head_dim must be a multiple of 8 and block_size positive");
  }
  const Array lens(context_lens, "context_lens");
  lens.expect_ndim(1);
  const int64_t sequences = lens.size(0);
  const Array table(block_table, "block_table");
  table.expect_shape({sequences, kAnySize});
  args.block_table = table.data<int32_t>();
  args.max_blocks = table.size(1);
  args.rows = {input<int32_t>(Array(row_splits, "row_splits"), {sequences + 1}),
               lens.data<int32_t>(), input<int32_t>(Array(parents, "parents"), {rows}),
               static_cast<int>(sequences), static_cast<int>(rows)};
  args.scale = scale;
  const std::string mistake = check_attention_rows(args.rows);
  if (!mistake.empty()) throw py::value_error(mistake);
  expect_blocks(args);
  py::object out = query_array.new_like({rows, heads * args.cache.head_dim});
  args.out = Array(out, "out").mutable_data<float>();
  run_attention(args);
  return out;
}

py::tuple bind_merge_attention_states(py::handle output_a, py::handle lse_a, py::handle output_b,
                                      py::handle lse_b) {
  const Array first(output_a, "output_a");
  first.expect_ndim(3);
  const int64_t rows = first.size(0), heads = first.size(1), dim = first.size(2);
  MergeStatesArgs args;
  args.out_a = first.data<float>();
  args.lse_a = input<float>(Array(lse_a, "lse_a"), {rows, heads});
  args.out_b = input<float>(Array(output_b, "output_b"), {rows, heads, dim});
  args.lse_b = input<float>(Array(lse_b, "lse_b"), {rows, heads});
  args.pairs = rows * heads;
  args.head_dim = dim;
  py::object out = first.new_like({rows, heads, dim});
  py::object lse = first.new_like({rows, heads});
  args.out = Array(out, "out").mutable_data<float>();
  args.lse = Array(lse, "lse").mutable_data<float>();
  {
    const py::gil_scoped_release release;
    run_merge_attention_states(args);
  }
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
