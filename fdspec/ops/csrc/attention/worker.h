// SPDX-License-Identifier: Apache-2.0
// What one slice does of a step of attention, whatever computes a part. A class Part has
//
//   using Weights                           FloatWeights, BFloat16Weights or Int8Weights
//   load_queries(item)                      before the parts of an item
//   attend(item, keys, rows, target)        folds the states of these rows over the keys into
//   target write(o, factor, out)                   o * factor in the order of the output
//
// It must be a type of its .cc file alone, so that its Worker is too: the linker would merge the
// workers of files that are compiled for different processors.
#pragma once

#include "attention/keys.h"
#include "attention/states.h"

namespace fdspec {
namespace FDSPEC_ISA {

// The step as one slice sees it.
struct SliceStep {
  const AttentionArgs& args;
  const Slice slice;
  const AttentionScratch scratch;
  const int group;
  const int dim;

  FDSPEC_INLINE SliceStep(const AttentionArgs& args, Slice slice)
      : args(args),
        slice(slice),
        scratch(attention_scratch(*args.plan, args.shape, slice.count)),
        group(args.shape.group()),
        dim(args.shape.head_dim) {}

  FDSPEC_INLINE float* of_slice(int index, int64_t offset) const {
    return args.workspace + index * scratch.size + offset;
  }
  FDSPEC_INLINE float* mine(int64_t offset) const { return of_slice(slice.index, offset); }
  FDSPEC_INLINE int num_queries(const AttentionItem& item) const { return item.num_rows * group; }
  // Place of an item's query among all (row, head) pairs of the step.
  FDSPEC_INLINE int64_t query_index(const AttentionItem& item, int query) const {
    return query_index(item, query / group, query % group);
  }
  FDSPEC_INLINE int64_t query_index(const AttentionItem& item, int row, int head) const {
    return int64_t{item.first_row + row} * args.shape.num_heads + item.kv_head * group + head;
  }
};

template <class Part>
class Worker {
 public:
  Worker(const AttentionArgs& args, Slice slice) : step_(args, slice), part_(step_) {}

  void run() {
    for (int level = 0; level < plan().num_levels(); ++level) {
      if (level > 0) step_.slice.sync();
      run_level(level);
    }
  }

 private:
  using Weights = typename Part::Weights;
  static constexpr int kFewQueries = 2 * kTileQueries;

  void run_level(int level) {
    AttentionCut at = cut(level, step_.slice.index);
    const AttentionCut end = cut(level, step_.slice.index + 1);
    while (at.item < end.item || (at.item == end.item && at.part < end.part)) {
      const AttentionItem& item = plan().item(at.item);
      attend_item(item, at.part, at.item == end.item ? end.part : item.num_parts);
      at = {at.item + 1, 0};
    }
    join_split_items(level);
  }

  // Parts [begin, end) of an item. States are folded as they come if the item's first part is
  // among them; else they are kept apart until all slices have met.
  void attend_item(const AttentionItem& item, int begin, int end) {
    part_.load_queries(item);
    next_part_ = -1;
    const int num_queries = step_.num_queries(item);
    States target = running_states(step_.slice.index, item);
    if (begin == 0) start(item, target);
    for (int part = begin; part < end; ++part) {
      if (begin > 0) {
        target = leading_states(step_.slice.index, item, part - begin);
        clear_states(target, num_queries);
      }
      attend_part(item, item.first_part + part, target);
    }
    if (begin == 0 && end == item.num_parts) finish(item, target, {0, num_queries});
  }

  // Folds the states of all rows of the item over one part into target.
  void attend_part(const AttentionItem& item, int part, States target) {
    const int first = part * kPartKeys;
    if (first + kPartKeys <= item.context) {
      attend_context(item, part, target);
      return;
    }
    // Row 0 of a chain would see context + row_offset + 1 tokens, each further row one more.
    PartKeys keys;
    keys.base = item.context + item.row_offset + 1 - first;
    const int count = min_of(kPartKeys, keys.base + item.num_chain_rows - 1);
    if (item.num_chain_rows > 0 && count > 0) {
      locate_keys(step_.args, item, first, count, &keys);
      part_.attend(item, keys, {max_of(0, 1 - keys.base), item.num_chain_rows}, target);
    }
    for (int row = item.num_chain_rows; row < item.num_rows; ++row) {
      if (!locate_path(step_.args, item, row, first, &keys)) continue;
      keys.base = kPartKeys;
      part_.attend(item, keys, {row, row + 1}, target);
    }
  }

  // The same for a part that all rows see.
  void attend_context(const AttentionItem& item, int part, States target) {
    PartKeys& keys = context_keys_[part % 2];
    // The part before has found the keys.
    if (part != next_part_) locate_context(item, part);
    // Many queries are so long at a part that the next one needs no asking ahead.
    const bool has_next = (part + 2) * kPartKeys <= item.context;
    if (has_next && step_.num_queries(item) <= kFewQueries) {
      locate_context(item, part + 1);
      keys.next = &context_keys_[(part + 1) % 2];
    }
    part_.attend(item, keys, {0, item.num_rows}, target);
  }

  void locate_context(const AttentionItem& item, int part) {
    PartKeys& keys = context_keys_[part % 2];
    locate_keys(step_.args, item, part * kPartKeys, kPartKeys, &keys);
    keys.base = kPartKeys;
    next_part_ = part;
  }

  // Folds the states that several slices made of one item; the slices share its queries.
  void join_split_items(int level) {
    bool has_met = false;
    for (int index = 1; index < step_.slice.count; ++index) {
      const AttentionCut first = cut(level, index);
      if (first.part == 0) continue;
      if (!has_met) step_.slice.sync();
      has_met = true;
      // The slice before began the item and has folded its first parts.
      const AttentionItem& item = plan().item(first.item);
      const States running = running_states(index - 1, item);
      const Range share = step_.slice.share(step_.num_queries(item));
      const Span queries{static_cast<int>(share.begin), static_cast<int>(share.end)};
      AttentionCut at = first;
      for (; at.item == first.item && at.part != 0; at = cut(level, ++index)) {
        const AttentionCut next = cut(level, index + 1);
        const int end = next.item == at.item ? next.part : item.num_parts;
        for (int part = at.part; part < end; ++part) {
          const States leading = leading_states(index, item, part - at.part);
          fold_states<Weights>(running.from(queries.begin), leading.from(queries.begin),
                               queries.end - queries.begin,
                               static_cast<int>(step_.scratch.output_stride));
        }
      }
      --index;
      finish(item, running, queries);
    }
  }

  // States before an item's first part: nothing, or what a shared prefix left.
  void start(const AttentionItem& item, States target) {
    clear_states(target, step_.num_queries(item));
    if (item.first_part == 0) return;
    const States shared = shared_states();
    for (int query = 0; query < step_.num_queries(item); ++query) {
      const int64_t index = step_.query_index(item, query);
      copy_state(shared.from(static_cast<int>(index)), target.from(query));
    }
  }

  void finish(const AttentionItem& item, States states, Span queries) {
    for (int query = queries.begin; query < queries.end; ++query) {
      const int64_t index = step_.query_index(item, query);
      if (item.is_prefix) {
        copy_state(states.from(query), shared_states().from(static_cast<int>(index)));
      } else {
        part_.write(states.o + query * states.stride, splat(1.0f) / splat(states.l[query]),
                    step_.args.out + index * step_.dim);
      }
    }
  }

  void copy_state(States from, States to) {
    *to.m = *from.m;
    *to.l = *from.l;
    std::memcpy(to.o, from.o, sizeof(float) * static_cast<size_t>(from.stride));
  }

  const AttentionPlan& plan() const { return *step_.args.plan; }
  AttentionCut cut(int level, int index) const {
    return plan().cut(level, index, step_.slice.count);
  }
  States running_states(int index, const AttentionItem& item) const {
    return states_in(step_.of_slice(index, step_.scratch.running), step_.num_queries(item),
                     step_.scratch.output_stride);
  }
  States leading_states(int index, const AttentionItem& item, int part) const {
    const int num_queries = step_.num_queries(item);
    const int64_t floats = query_capacity(num_queries) * (2 + step_.scratch.output_stride);
    return states_in(step_.of_slice(index, step_.scratch.leading) + part * floats, num_queries,
                     step_.scratch.output_stride);
  }
  States shared_states() const {
    return states_in(step_.args.workspace + step_.scratch.shared,
                     plan().num_rows() * step_.args.shape.num_heads, step_.scratch.output_stride);
  }

  const SliceStep step_;
  Part part_;
  PartKeys context_keys_[2];  // of even and of odd parts
  int next_part_ = -1;        // of the item: its keys have been found
};

}  // namespace FDSPEC_ISA
}  // namespace fdspec
