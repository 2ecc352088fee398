// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_plan.h"

#include <algorithm>

#include "common/parallel.h"

namespace fdspec {
namespace {

// Rows of an item, times heads: enough to make loading a part of the keys cheap beside using it.
constexpr int kTargetQueries = 96;
// Loading a part costs about as much as attending to it with this many (row, head) pairs.
constexpr int64_t kLoadCost = 8;
// Cost for which waking one more thread pays.
constexpr int64_t kMinSliceCost = 64;
// An item this many times smaller than a thread's share is not split.
constexpr int64_t kWholeItems = 8;

}  // namespace

AttentionPlan::AttentionPlan(const AttentionRows& rows, const AttentionShape& shape)
    : depths_(static_cast<size_t>(rows.num_rows)) {
  const int group = shape.group();
  const int block_rows = std::max(1, kTargetQueries / group);
  for (int sequence = 0; sequence < rows.num_sequences; ++sequence) {
    const int first = rows.row_splits[sequence];
    const int num_rows = rows.row_splits[sequence + 1] - first;
    const int32_t* parents = rows.parents + first;
    int32_t* depths = depths_.data() + first;
    int num_chain_rows = 0;
    for (int row = 0; row < num_rows; ++row) {
      depths[row] = parents[row] < 0 ? 0 : depths[parents[row]] + 1;
      if (num_chain_rows == row && parents[row] == row - 1) ++num_chain_rows;
    }
    for (int begin = 0; begin < num_rows; begin += block_rows) {
      AttentionItem item;
      item.sequence = sequence;
      item.context = rows.context_lens[sequence];
      item.first_row = first + begin;
      item.num_rows = std::min(block_rows, num_rows - begin);
      item.num_chain_rows = std::clamp(num_chain_rows - begin, 0, item.num_rows);
      item.row_offset = begin;
      const int32_t deepest = *std::max_element(depths + begin, depths + begin + item.num_rows);
      item.num_parts = (item.context + deepest) / kPartKeys + 1;
      item.part_cost = kLoadCost + item.num_rows * group;
      max_queries_ = std::max(max_queries_, item.num_rows * group);
      for (item.kv_head = 0; item.kv_head < shape.num_kv_heads; ++item.kv_head) {
        item.start_cost = total_cost_;
        total_cost_ += item.cost();
        items_.push_back(item);
      }
    }
  }
}

const AttentionItem& AttentionPlan::item(int index) const {
  return items_[static_cast<size_t>(index)];
}

int AttentionPlan::depth(int row) const { return depths_[static_cast<size_t>(row)]; }

AttentionCut AttentionPlan::cut(int index, int count) const {
  if (index >= count) return {static_cast<int>(items_.size()), 0};
  const int64_t target = total_cost_ * index / count;
  const auto after = std::upper_bound(
      items_.begin(), items_.end(), target,
      [](int64_t cost, const AttentionItem& item) { return cost < item.start_cost; });
  if (after == items_.begin()) return {0, 0};
  const AttentionItem& holder = *(after - 1);
  const int64_t within = target - holder.start_cost;
  int64_t part = (within + holder.part_cost / 2) / holder.part_cost;
  if (holder.cost() * kWholeItems <= total_cost_ / count) {
    part = 2 * within < holder.cost() ? 0 : holder.num_parts;
  }
  const int number = static_cast<int>(after - 1 - items_.begin());
  if (part >= holder.num_parts) return {number + 1, 0};
  return {number, static_cast<int>(part)};
}

int AttentionPlan::max_leading_parts(int count) const {
  int most = 0;
  for (int index = 1; index < count; ++index) {
    const AttentionCut begin = cut(index, count);
    if (begin.part == 0) continue;
    const AttentionCut end = cut(index + 1, count);
    const int last = end.item == begin.item ? end.part : item(begin.item).num_parts;
    most = std::max(most, last - begin.part);
  }
  return most;
}

int AttentionPlan::num_slices() const { return slices_for(total_cost_, kMinSliceCost); }

std::string check_attention_rows(const AttentionRows& rows) {
  if (rows.row_splits[0] != 0) return "row_splits: must start with 0";
  for (int sequence = 0; sequence < rows.num_sequences; ++sequence) {
    const std::string of_sequence = " of sequence " + std::to_string(sequence);
    const int begin = rows.row_splits[sequence];
    const int end = rows.row_splits[sequence + 1];
    if (end < begin || end > rows.num_rows) {
      return "row_splits: must not decrease nor exceed the number of rows, " +
             std::to_string(rows.num_rows);
    }
    if (rows.context_lens[sequence] < 0) return "context_lens: negative length" + of_sequence;
    for (int row = begin; row < end; ++row) {
      if (rows.parents[row] < -1 || rows.parents[row] >= row - begin) {
        return "parents: row " + std::to_string(row - begin) + of_sequence + " has parent " +
               std::to_string(rows.parents[row]) + ", which must be -1 or an earlier row of it";
      }
    }
  }
  if (rows.row_splits[rows.num_sequences] != rows.num_rows) {
    return "row_splits: must end with the number of rows, " + std::to_string(rows.num_rows);
  }
  return {};
}

}  // namespace fdspec
