// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include "attention/multiply.h"
#include "attention/part.h"
#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

// Half-open range of an item's rows or queries; query = row * group + head of the group.
struct Span {
  int begin;
  int end;
};

// Some keys of one part and who sees them: row r sees the first min(count, base + r).
struct PartKeys {
  const void* key[kPartKeys];  // up to a multiple of kLanes; missing keys are zeros
  const void* value[kPartKeys];
  int count;
  int base;

  int visible(int row) const { return min_of(count, base + row); }
};

// What one slice does of a step.
class Worker {
 public:
  Worker(const AttentionArgs& args, Slice slice)
      : args_(args),
        slice_(slice),
        scratch_(attention_scratch(*args.plan, args.shape, slice.count)),
        group_(args.shape.group()),
        dim_(args.shape.head_dim) {
    std::memset(mine(scratch_.zeros), 0, sizeof(float) * static_cast<size_t>(dim_));
  }

  void run() {
    AttentionCut at = cut(slice_.index);
    const AttentionCut end = cut(slice_.index + 1);
    while (at.item < end.item || (at.item == end.item && at.part < end.part)) {
      const AttentionItem& item = item_at(at.item);
      attend_item(item, at.part, at.item == end.item ? end.part : item.num_parts);
      at = {at.item + 1, 0};
    }
    join_split_items();
  }

 private:
  // Parts [begin, end) of an item. States are folded as they come if the item's first part is
  // among them; else they are kept apart until all slices have met.
  void attend_item(const AttentionItem& item, int begin, int end) {
    load_queries(item);
    float* running = mine(scratch_.running);
    if (begin == 0) clear_states(running, num_queries(item), scratch_.state_stride);
    for (int part = begin; part < end; ++part) {
      if (begin == 0) {
        float* states = mine(scratch_.part);
        attend_part(item, part, states);
        fold(running, states, {0, num_queries(item)});
      } else {
        attend_part(item, part, leading_states(slice_.index, item, part - begin));
      }
    }
    if (begin == 0 && end == item.num_parts) write_out(item, running, {0, num_queries(item)});
  }

  // States of all queries of the item over one part; empty for rows that see none of it.
  void attend_part(const AttentionItem& item, int part, float* states) {
    const int first = part * kPartKeys;
    clear_states(states, num_queries(item), scratch_.state_stride);
    int32_t slots[kPartKeys];
    PartKeys keys;
    if (first + kPartKeys <= item.context) {
      if (first + 2 * kPartKeys <= item.context) prefetch_part(item, part + 1);
      number(first, kPartKeys, slots);
      locate(item, slots, kPartKeys, &keys);
      keys.base = kPartKeys;
      attend_rows(keys, {0, item.num_rows}, states);
      return;
    }
    // Row 0 of a chain would see context + row_offset + 1 tokens, each further row one more.
    keys.base = item.context + item.row_offset + 1 - first;
    const int count = min_of(kPartKeys, keys.base + item.num_chain_rows - 1);
    if (item.num_chain_rows > 0 && count > 0) {
      number(first, count, slots);
      locate(item, slots, count, &keys);
      attend_rows(keys, {max_of(0, 1 - keys.base), item.num_chain_rows}, states);
    }
    for (int row = item.num_chain_rows; row < item.num_rows; ++row) {
      const int num_seen = path_slots(item, row, first, slots);
      if (num_seen <= 0) continue;
      locate(item, slots, num_seen, &keys);
      keys.base = kPartKeys;
      attend_rows(keys, {row, row + 1}, states);
    }
  }

  // States of these rows over the keys.
  void attend_rows(const PartKeys& keys, Span rows, float* states) {
    const bool is_bf16 = args_.cache.is_bf16;
    const Span queries{rows.begin * group_, rows.end * group_};
    load_keys_transposed(keys.key, keys.count, dim_, is_bf16, mine(scratch_.keys));
    // One tile of queries reads the values once, straight from the cache.
    const bool is_direct = queries.end - queries.begin <= kFloatRows && dim_ % kLanes == 0;
    if (!is_direct) {
      load_values(keys.value, keys.count, dim_, is_bf16, mine(scratch_.values), padded_dim());
    }
    for (int query = queries.begin; query < queries.end; query += kFloatRows) {
      const Span tile{query, min_of(query + kFloatRows, queries.end)};
      score_tile(keys, tile, states);
      if (!is_direct) {
        sum_values(keys, tile, FloatMatrix{mine(scratch_.values), padded_dim()}, states);
      } else if (is_bf16) {
        sum_values(keys, tile, BFloat16Rows{keys.value}, states);
      } else {
        sum_values(keys, tile, FloatRows{keys.value}, states);
      }
    }
  }

  // exp(score - m) of a tile of queries, and their m and l.
  void score_tile(const PartKeys& keys, Span tile, float* states) {
    float* scores = mine(scratch_.scores);
    const Product product{
        mine(scratch_.queries) + tile.begin * dim_, dim_, scores, kPartKeys, 0, dim_, false};
    multiply(product, FloatMatrix{mine(scratch_.keys), kPartKeys}, tile.end - tile.begin,
             (keys.count + kLanes - 1) / kLanes * kLanes);
    for (int query = tile.begin; query < tile.end; ++query) {
      softmax_part(scores + (query - tile.begin) * kPartKeys, keys.visible(query / group_),
                   states + query * scratch_.state_stride);
    }
  }

  // o of a tile of queries: the keys that all of them see together, then the rest row by row.
  // A row never touches a value that it does not see, as 0 * NaN would be NaN.
  template <class Matrix>
  void sum_values(const PartKeys& keys, Span tile, const Matrix& values, float* states) {
    const int num_common = keys.visible(tile.begin / group_);
    float* first_output = states + tile.begin * scratch_.state_stride + kStateHeader;
    Product product{mine(scratch_.scores),
                    kPartKeys,
                    first_output,
                    scratch_.state_stride,
                    0,
                    num_common,
                    false};
    multiply(product, values, tile.end - tile.begin, padded_dim());
    product.k_begin = num_common;
    product.accumulate = true;
    for (int query = tile.begin; query < tile.end; ++query) {
      product.k_end = keys.visible(query / group_);
      if (product.k_end > num_common) multiply(product, values, 1, padded_dim());
      product.a += product.a_stride;
      product.c += product.c_stride;
    }
  }

  // Blocks are scattered over memory, so the processor cannot foresee the next part. Always
  // inlined: GCC deletes calls of a function that does nothing but prefetch.
  FDSPEC_INLINE void prefetch_part(const AttentionItem& item, int part) const {
    constexpr int kLineBytes = 64;
    int32_t slots[kPartKeys];
    PartKeys keys;
    number(part * kPartKeys, kPartKeys, slots);
    locate(item, slots, kPartKeys, &keys);
    for (int i = 0; i < kPartKeys; ++i) {
      for (int byte = 0; byte < dim_ * args_.cache.element_size(); byte += kLineBytes) {
        prefetch(static_cast<const char*>(keys.key[i]) + byte);
        prefetch(static_cast<const char*>(keys.value[i]) + byte);
      }
    }
  }

  static void number(int first, int count, int32_t* slots) {
    for (int i = 0; i < count; ++i) slots[i] = first + i;
  }

  // Addresses of the keys and values in the given slots of the item's sequence.
  void locate(const AttentionItem& item, const int32_t* slots, int count, PartKeys* keys) const {
    const PagedCache& cache = args_.cache;
    const int32_t* blocks = args_.block_table + item.sequence * args_.max_blocks;
    const int64_t size = cache.element_size();
    keys->count = count;
    const int64_t entry_bytes = cache.head_dim * size;
    for (int i = 0; i < count;) {
      // Slots that follow each other in one block, at the cost of one division.
      const int block = slots[i] / cache.block_size;
      const int in_block = slots[i] - block * cache.block_size;
      int64_t offset = cache.offset(blocks[block], item.kv_head, in_block) * size;
      const int run_end = min_of(count, i + cache.block_size - in_block);
      const int32_t first = slots[i] - i;
      for (; i < run_end && slots[i] == first + i; ++i, offset += entry_bytes) {
        keys->key[i] = static_cast<const char*>(cache.key) + offset;
        keys->value[i] = static_cast<const char*>(cache.value) + offset;
      }
    }
    for (int i = count; i % kLanes != 0; ++i) keys->key[i] = mine(scratch_.zeros);
  }

  // Slots of the tokens at positions [first, first + kPartKeys) that a tree row sees.
  int path_slots(const AttentionItem& item, int row, int first, int32_t slots[kPartKeys]) const {
    const int32_t* parents = args_.rows.parents + item.first_row - item.row_offset;
    int node = item.row_offset + row;
    int position = item.context + args_.plan->depth(item.first_row + row);
    const int count = min_of(kPartKeys, position + 1 - first);
    for (; node >= 0 && position >= first; node = parents[node], --position) {
      if (position < first + kPartKeys) slots[position - first] = item.context + node;
    }
    for (int i = 0; i < count && first + i < item.context; ++i) slots[i] = first + i;
    return count;
  }

  // Folds the states that several slices made of one item; the slices share its queries.
  void join_split_items() {
    bool has_met = false;
    for (int index = 1; index < slice_.count; ++index) {
      const AttentionCut first = cut(index);
      if (first.part == 0) continue;
      if (!has_met) slice_.sync();
      has_met = true;
      // The slice before began the item and has folded its first parts.
      const AttentionItem& item = item_at(first.item);
      float* running = of_slice(index - 1, scratch_.running);
      const Range share = slice_.share(num_queries(item));
      const Span queries{static_cast<int>(share.begin), static_cast<int>(share.end)};
      AttentionCut at = first;
      for (; at.item == first.item && at.part != 0; at = cut(++index)) {
        const AttentionCut next = cut(index + 1);
        const int end = next.item == at.item ? next.part : item.num_parts;
        for (int part = at.part; part < end; ++part) {
          fold(running, leading_states(index, item, part - at.part), queries);
        }
      }
      --index;
      write_out(item, running, queries);
    }
  }

  void load_queries(const AttentionItem& item) {
    const F16 scale = splat(args_.scale);
    float* target = mine(scratch_.queries);
    for (int query = 0; query < num_queries(item); ++query, target += dim_) {
      const float* source = args_.query + query_index(item, query) * dim_;
      for (int i = 0; i < dim_; i += kLanes) {
        const int width = min_of(kLanes, dim_ - i);
        (F16::load_partial(source + i, width) * scale).store_partial(target + i, width);
      }
    }
  }

  void fold(float* left, const float* right, Span queries) {
    for (int query = queries.begin; query < queries.end; ++query) {
      const int64_t offset = query * scratch_.state_stride;
      fold_state(left + offset, right + offset, padded_dim());
    }
  }

  void write_out(const AttentionItem& item, const float* states, Span queries) {
    for (int query = queries.begin; query < queries.end; ++query) {
      const float* state = states + query * scratch_.state_stride;
      const F16 inverse = splat(1.0f) / splat(state[1]);
      float* target = args_.out + query_index(item, query) * dim_;
      for (int i = 0; i < dim_; i += kLanes) {
        const F16 value = F16::load(state + kStateHeader + i) * inverse;
        value.store_partial(target + i, min_of(kLanes, dim_ - i));
      }
    }
  }

  // Place of an item's query among all (row, head) pairs of the step.
  int64_t query_index(const AttentionItem& item, int query) const {
    const int64_t row = item.first_row + query / group_;
    return row * args_.shape.num_heads + item.kv_head * group_ + query % group_;
  }
  int num_queries(const AttentionItem& item) const { return item.num_rows * group_; }
  int padded_dim() const { return static_cast<int>(scratch_.state_stride) - kStateHeader; }
  AttentionCut cut(int index) const { return args_.plan->cut(index, slice_.count); }
  const AttentionItem& item_at(int index) const { return args_.plan->item(index); }
  float* of_slice(int index, int64_t offset) const {
    return args_.workspace + index * scratch_.size + offset;
  }
  float* mine(int64_t offset) const { return of_slice(slice_.index, offset); }
  float* leading_states(int index, const AttentionItem& item, int part) const {
    return of_slice(index, scratch_.leading) + part * num_queries(item) * scratch_.state_stride;
  }

  const AttentionArgs& args_;
  const Slice slice_;
  const AttentionScratch scratch_;
  const int group_;
  const int dim_;
};

}  // namespace

void cascade_append_attention(const AttentionArgs& args, Slice slice) { Worker(args, slice).run(); }

}  // namespace FDSPEC_ISA
}  // namespace fdspec
