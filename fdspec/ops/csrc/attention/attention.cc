// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include "common/workspace.h"

namespace fdspec {
namespace {

constexpr int64_t kLineFloats = 16;
// Rows of the largest register tile of any instruction set.
constexpr int64_t kMaxTileRows = 6;

int64_t whole_lines(int64_t floats) {
  return (floats + kLineFloats - 1) / kLineFloats * kLineFloats;
}

}  // namespace

AttentionScratch attention_scratch(const AttentionPlan& plan, const AttentionShape& shape,
                                   int num_slices) {
  const int64_t padded_dim = whole_lines(shape.head_dim);
  const int64_t queries = plan.max_queries();
  AttentionScratch scratch;
  int64_t used = 0;
  const auto take = [&used](int64_t floats) {
    const int64_t offset = used;
    used += whole_lines(floats);
    return offset;
  };
  scratch.state_stride = kLineFloats + padded_dim;
  const int64_t states = queries * scratch.state_stride;
  scratch.zeros = take(shape.head_dim);
  scratch.queries = take(queries * shape.head_dim);
  scratch.keys = take(shape.head_dim * kPartKeys);
  scratch.values = take(kPartKeys * padded_dim);
  scratch.scores = take(kMaxTileRows * kPartKeys);
  scratch.part = take(states);
  scratch.running = take(states);
  scratch.leading = take(plan.max_leading_parts(num_slices) * states);
  scratch.size = used;
  return scratch;
}

int64_t attention_workspace_bytes(const AttentionPlan& plan, const AttentionShape& shape,
                                  int num_slices) {
  return attention_scratch(plan, shape, num_slices).size * num_slices *
         static_cast<int64_t>(sizeof(float));
}

void run_cascade_append_attention(const AttentionArgs& args, int num_slices) {
  launch(cascade_append_attention_kernel(), args, num_slices);
}

void run_unplanned_attention(AttentionArgs args) {
  const AttentionPlan plan(args.rows, args.shape);
  const int num_slices = plan.num_slices();
  args.plan = &plan;
  args.workspace = static_cast<float*>(
      thread_workspace(attention_workspace_bytes(plan, args.shape, num_slices)));
  run_cascade_append_attention(args, num_slices);
}

}  // namespace fdspec
