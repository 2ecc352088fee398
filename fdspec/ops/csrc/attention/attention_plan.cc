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
// Parts that must be common to sequences for reading them once to pay.
constexpr int kMinSharedParts = 2;
// Deeper trees of prefixes would have the threads meet more often than sharing saves.
constexpr int kMaxPrefixLevels = 4;

int rows_per_item(const AttentionShape& shape) {
  return std::max(1, kTargetQueries / shape.group());
}

int num_rows_of(const AttentionRows& rows, int sequence) {
  return rows.row_splits[sequence + 1] - rows.row_splits[sequence];
}

// Whole parts at the start of two sequences that are the same blocks, up to `limit`.
int common_parts(const AttentionRows& rows, const AttentionBlocks& blocks, int a, int b,
                 int limit) {
  const int context = std::min(rows.context_lens[a], rows.context_lens[b]);
  const int64_t slots = std::min<int64_t>(context, blocks.max_blocks * blocks.block_size);
  limit = std::min(limit, static_cast<int>(slots / kPartKeys));
  const int32_t* blocks_a = blocks.table + a * blocks.max_blocks;
  const int32_t* blocks_b = blocks.table + b * blocks.max_blocks;
  const int64_t most = (int64_t{limit} * kPartKeys + blocks.block_size - 1) / blocks.block_size;
  const int64_t equal = std::mismatch(blocks_a, blocks_a + most, blocks_b).first - blocks_a;
  return static_cast<int>(std::min<int64_t>(limit, equal * blocks.block_size / kPartKeys));
}

// The runs inside a run whose sequences have enough parts in common beyond those of the whole run.
std::vector<PrefixRun> split_run(const PrefixRun& run, const std::vector<int>& common) {
  const int least = run.num_parts + kMinSharedParts;
  std::vector<PrefixRun> parts;
  for (int first = run.first, end = 0; first < run.end; first = end) {
    int num_parts = 0;
    for (end = first + 1; end < run.end; ++end) {
      const int with_next = common[static_cast<size_t>(end - 1)];
      if (with_next < least) break;
      num_parts = num_parts == 0 ? with_next : std::min(num_parts, with_next);
    }
    if (num_parts > 0) parts.push_back({first, end, num_parts});
  }
  return parts;
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionRows& rows, const AttentionShape& shape) {
  measure_depths(rows);
  add_sequences(rows, shape, std::vector<int32_t>(static_cast<size_t>(rows.num_sequences)));
}

AttentionPlan::AttentionPlan(const AttentionRows& rows, const AttentionShape& shape,
                             const AttentionBlocks& blocks) {
  measure_depths(rows);
  std::vector<int32_t> shared_parts(static_cast<size_t>(rows.num_sequences));
  share_prefixes(rows, shape, blocks, &shared_parts);
  add_sequences(rows, shape, shared_parts);
}

void AttentionPlan::measure_depths(const AttentionRows& rows) {
  depths_.resize(static_cast<size_t>(rows.num_rows));
  for (int sequence = 0; sequence < rows.num_sequences; ++sequence) {
    const int32_t* parents = rows.parents + rows.row_splits[sequence];
    int32_t* depths = depths_.data() + rows.row_splits[sequence];
    for (int row = 0; row < num_rows_of(rows, sequence); ++row) {
      depths[row] = parents[row] < 0 ? 0 : depths[parents[row]] + 1;
    }
  }
}

void AttentionPlan::share_prefixes(const AttentionRows& rows, const AttentionShape& shape,
                                   const AttentionBlocks& blocks,
                                   std::vector<int32_t>* shared_parts) {
  // What a run of sequences has in common is the least that two neighbours in it have.
  std::vector<int> common(static_cast<size_t>(std::max(rows.num_sequences, 1)));
  for (int s = 0; s + 1 < rows.num_sequences; ++s) {
    const int limit = rows.context_lens[s] / kPartKeys;
    common[static_cast<size_t>(s)] = common_parts(rows, blocks, s, s + 1, limit);
  }
  std::vector<PrefixRun> runs{{0, rows.num_sequences, 0}};
  for (int depth = 0; depth < kMaxPrefixLevels && !runs.empty(); ++depth) {
    std::vector<PrefixRun> longer;
    Level level{static_cast<int>(items_.size()), static_cast<int>(items_.size()), 0};
    for (const PrefixRun& run : runs) {
      for (const PrefixRun& part : split_run(run, common)) {
        std::fill(shared_parts->begin() + part.first, shared_parts->begin() + part.end,
                  part.num_parts);
        add_prefix(rows, shape, part, run.num_parts, &level);
        longer.push_back(part);
      }
    }
    if (level.end_item > level.first_item) levels_.push_back(level);
    runs = std::move(longer);
  }
}

void AttentionPlan::add_prefix(const AttentionRows& rows, const AttentionShape& shape,
                               const PrefixRun& run, int first_part, Level* level) {
  const int end_row = rows.row_splits[run.end];
  for (int row = rows.row_splits[run.first]; row < end_row; row += rows_per_item(shape)) {
    AttentionItem item{};
    item.sequence = run.first;
    item.context = run.num_parts * kPartKeys;
    item.first_row = row;
    item.num_rows = std::min(rows_per_item(shape), end_row - row);
    item.first_part = first_part;
    item.num_parts = run.num_parts - first_part;
    item.is_prefix = true;
    add_items(item, shape, level);
  }
}

void AttentionPlan::add_sequences(const AttentionRows& rows, const AttentionShape& shape,
                                  const std::vector<int32_t>& shared_parts) {
  Level level{static_cast<int>(items_.size()), static_cast<int>(items_.size()), 0};
  for (int sequence = 0; sequence < rows.num_sequences; ++sequence) {
    const int num_rows = num_rows_of(rows, sequence);
    const int first = rows.row_splits[sequence];
    const int32_t* parents = rows.parents + first;
    int num_chain_rows = 0;
    while (num_chain_rows < num_rows && parents[num_chain_rows] == num_chain_rows - 1) {
      ++num_chain_rows;
    }
    for (int begin = 0; begin < num_rows; begin += rows_per_item(shape)) {
      AttentionItem item{};
      item.sequence = sequence;
      item.context = rows.context_lens[sequence];
      item.first_row = first + begin;
      item.num_rows = std::min(rows_per_item(shape), num_rows - begin);
      item.num_chain_rows = std::clamp(num_chain_rows - begin, 0, item.num_rows);
      item.row_offset = begin;
      const auto depths = depths_.begin() + item.first_row;
      const int deepest = *std::max_element(depths, depths + item.num_rows);
      item.first_part = shared_parts[static_cast<size_t>(sequence)];
      item.num_parts = (item.context + deepest) / kPartKeys + 1 - item.first_part;
      add_items(item, shape, &level);
    }
  }
  levels_.push_back(level);
}

void AttentionPlan::add_items(AttentionItem item, const AttentionShape& shape, Level* level) {
  const int num_queries = item.num_rows * shape.group();
  max_queries_ = std::max(max_queries_, num_queries);
  item.part_cost = kLoadCost + num_queries;
  for (item.kv_head = 0; item.kv_head < shape.num_kv_heads; ++item.kv_head) {
    item.start_cost = level->cost;
    level->cost += item.cost();
    items_.push_back(item);
  }
  level->end_item = static_cast<int>(items_.size());
}

int AttentionPlan::num_levels() const { return static_cast<int>(levels_.size()); }

const AttentionItem& AttentionPlan::item(int index) const {
  return items_[static_cast<size_t>(index)];
}

int AttentionPlan::depth(int row) const { return depths_[static_cast<size_t>(row)]; }

int AttentionPlan::num_rows() const { return static_cast<int>(depths_.size()); }

int AttentionPlan::max_queries() const { return max_queries_; }

AttentionCut AttentionPlan::cut(int level, int index, int count) const {
  const Level& at = levels_[static_cast<size_t>(level)];
  if (index >= count) return {at.end_item, 0};
  const int64_t target = at.cost * index / count;
  const auto begin = items_.begin() + at.first_item;
  const auto after = std::upper_bound(
      begin, items_.begin() + at.end_item, target,
      [](int64_t cost, const AttentionItem& item) { return cost < item.start_cost; });
  if (after == begin) return {at.first_item, 0};
  const AttentionItem& holder = *(after - 1);
  const int64_t within = target - holder.start_cost;
  int64_t part = (within + holder.part_cost / 2) / holder.part_cost;
  if (holder.cost() * kWholeItems <= at.cost / count) {
    part = 2 * within < holder.cost() ? 0 : holder.num_parts;
  }
  const int number = static_cast<int>(after - 1 - items_.begin());
  if (part >= holder.num_parts) return {number + 1, 0};
  return {number, static_cast<int>(part)};
}

int AttentionPlan::max_leading_parts(int count) const {
  int most = 0;
  for (int level = 0; level < num_levels(); ++level) {
    for (int index = 1; index < count; ++index) {
      const AttentionCut begin = cut(level, index, count);
      if (begin.part == 0) continue;
      const AttentionCut end = cut(level, index + 1, count);
      const int last = end.item == begin.item ? end.part : item(begin.item).num_parts;
      most = std::max(most, last - begin.part);
    }
  }
  return most;
}

int AttentionPlan::num_slices() const {
  int64_t cost = 0;
  for (const Level& level : levels_) cost += level.cost;
  return slices_for(cost, kMinSliceCost);
}

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
