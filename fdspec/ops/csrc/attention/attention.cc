// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include "common/workspace.h"

namespace fdspec {
namespace {

constexpr int64_t kLineFloats = 16;
// Columns of o are padded to a whole number of tiles for each block of 32.
constexpr int64_t kDimBlock = 32;

int64_t whole(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

}  // namespace

int64_t attention_states_floats(int64_t num_queries, int64_t output_stride) {
  return whole(num_queries, kLineFloats) * (2 + output_stride);
}

AttentionScratch attention_scratch(const AttentionPlan& plan, const AttentionShape& shape,
                                   int num_slices) {
  const int64_t padded_dim = whole(shape.head_dim, kDimBlock);
  const int64_t queries = whole(plan.max_queries(), kTileQueries);
  const int64_t states = attention_states_floats(queries, padded_dim);
  AttentionScratch scratch;
  int64_t used = 0;
  const auto take = [&used](int64_t floats) {
    const int64_t offset = used;
    used += whole(floats, kLineFloats);
    return offset;
  };
  scratch.output_stride = padded_dim;
  scratch.zeros = take(padded_dim);
  scratch.query_rows = take(queries);
  scratch.queries = take(queries * padded_dim);
  scratch.keys = take(padded_dim * kPartKeys);
  scratch.values = take(kPartKeys * padded_dim);
  scratch.scales = take(2 * kPartKeys);
  scratch.scores = take(2 * kPartKeys * kTileQueries);
  scratch.weights = take(kPartKeys * kTileQueries);
  scratch.tile = take(2 * attention_states_floats(kTileQueries, padded_dim));
  scratch.running = take(states);
  scratch.leading = take(plan.max_leading_parts(num_slices) * states);
  scratch.size = used;
  scratch.shared = used * num_slices;
  const int64_t shared_queries = plan.num_levels() > 1 ? plan.num_rows() * shape.num_heads : 0;
  scratch.total_size = scratch.shared + attention_states_floats(shared_queries, padded_dim);
  return scratch;
}

int64_t attention_workspace_bytes(const AttentionPlan& plan, const AttentionShape& shape,
                                  int num_slices) {
  return attention_scratch(plan, shape, num_slices).total_size *
         static_cast<int64_t>(sizeof(float));
}

void run_cascade_append_attention(const AttentionArgs& args, int num_slices) {
  launch(cascade_append_attention_kernel(), args, num_slices);
}

void run_unplanned_attention(AttentionArgs args) {
  const AttentionPlan plan(args.rows, args.shape,
                           {args.block_table, args.max_blocks, args.cache.block_size});
  const int num_slices = plan.num_slices();
  args.plan = &plan;
  args.workspace = static_cast<float*>(
      thread_workspace(attention_workspace_bytes(plan, args.shape, num_slices)));
  run_cascade_append_attention(args, num_slices);
}

}  // namespace fdspec
