// SPDX-License-Identifier: Apache-2.0
#include "attention/arguments.h"

#include <string>

namespace fdspec {

namespace {

CacheType cache_type(DType dtype) {
  if (dtype == DType::kInt8) return CacheType::kInt8;
  return dtype == DType::kBFloat16 ? CacheType::kBFloat16 : CacheType::kFloat32;
}

// Numbers in an entry, from the bytes or numbers that the last axis has.
int head_dim_of(const ArrayView& cache) {
  const int width = static_cast<int>(cache.size(3));
  if (cache.dtype() != DType::kInt8) return width;
  if (width > kScaleBytes) return width - kScaleBytes;
  throw ArgumentError(std::string(cache.name()) +
                      ": an int8 entry has head_dim codes and the 4 bytes of their scale, got " +
                      cache.describe());
}

}  // namespace

PagedCache paged_cache(const ArrayView& key_cache, const ArrayView& value_cache, bool writes) {
  key_cache.expect_dtype({DType::kFloat32, DType::kBFloat16, DType::kInt8}).expect_ndim(4);
  value_cache.expect_dtype({key_cache.dtype()})
      .expect_shape({key_cache.size(0), key_cache.size(1), key_cache.size(2), key_cache.size(3)});
  if (writes) {
    key_cache.expect_writable();
    value_cache.expect_writable();
  }
  PagedCache cache;
  cache.key = key_cache.address();
  cache.value = value_cache.address();
  cache.type = cache_type(key_cache.dtype());
  cache.num_blocks = key_cache.size(0);
  cache.num_kv_heads = static_cast<int>(key_cache.size(1));
  cache.block_size = static_cast<int>(key_cache.size(2));
  cache.head_dim = head_dim_of(key_cache);
  return cache;
}

void expect_slots(const char* name, const int64_t* slots, int64_t count, int64_t lowest,
                  const PagedCache& cache) {
  for (int64_t i = 0; i < count; ++i) {
    if (slots[i] >= lowest && slots[i] < cache.num_slots()) continue;
    throw ArgumentError(std::string(name) + ": slot " + std::to_string(slots[i]) +
                        " is outside the cache, " + std::to_string(lowest) + " .. " +
                        std::to_string(cache.num_slots() - 1));
  }
}

namespace {

// Every slot that the rows need must have a block in the table.
void expect_blocks(const AttentionArgs& args) {
  const int block_size = args.cache.block_size;
  for (int sequence = 0; sequence < args.rows.num_sequences; ++sequence) {
    const int num_rows = args.rows.row_splits[sequence + 1] - args.rows.row_splits[sequence];
    if (num_rows == 0) continue;
    const int64_t num_slots =
        int64_t{args.first_slot} + args.rows.context_lens[sequence] + num_rows;
    const int64_t num_blocks = (num_slots + block_size - 1) / block_size;
    const std::string of_sequence = " of sequence " + std::to_string(sequence);
    if (num_blocks > args.max_blocks) {
      throw ArgumentError("block_table: the " + std::to_string(num_slots) + " tokens" +
                          of_sequence + " need " + std::to_string(num_blocks) +
                          " blocks, the table has " + std::to_string(args.max_blocks));
    }
    const int32_t* blocks = args.block_table + sequence * args.max_blocks;
    for (int64_t i = 0; i < num_blocks; ++i) {
      if (blocks[i] >= 0 && blocks[i] < args.cache.num_blocks) continue;
      throw ArgumentError("block_table: block " + std::to_string(blocks[i]) + of_sequence +
                          " is outside the cache, 0 .. " +
                          std::to_string(args.cache.num_blocks - 1));
    }
  }
}

}  // namespace

void expect_heads(const AttentionShape& shape) {
  if (shape.num_kv_heads == 0 || shape.num_heads % shape.num_kv_heads != 0) {
    throw ArgumentError("query: " + std::to_string(shape.num_heads) +
                        " heads are no multiple of the " + std::to_string(shape.num_kv_heads) +
                        " heads of key_cache");
  }
  if (shape.head_dim % 8 != 0) {
    throw ArgumentError("key_cache: head_dim must be a multiple of 8");
  }
}

void expect_attention_rows(const AttentionArgs& args) {
  const std::string mistake = check_attention_rows(args.rows);
  if (!mistake.empty()) throw ArgumentError(mistake);
  expect_blocks(args);
}

AppendArgs append_args(const ArrayView& key, const ArrayView& value, const ArrayView& key_cache,
                       const ArrayView& value_cache, const ArrayView& slots) {
  AppendArgs args;
  args.cache = paged_cache(key_cache, value_cache, true);
  args.key = input<float>(key, {kAnySize, args.cache.num_kv_heads, args.cache.head_dim});
  args.rows = key.size(0);
  args.value = input<float>(value, {args.rows, args.cache.num_kv_heads, args.cache.head_dim});
  args.slots = input<int64_t>(slots, {args.rows});
  expect_slots(slots.name(), args.slots, args.rows, -1, args.cache);
  return args;
}

CompactArgs compact_args(const ArrayView& key_cache, const ArrayView& value_cache,
                         const ArrayView& source_slots, const ArrayView& destination_slots) {
  CompactArgs args;
  args.cache = paged_cache(key_cache, value_cache, true);
  args.source_slots = input<int64_t>(source_slots, {kAnySize});
  args.count = source_slots.size(0);
  args.destination_slots = input<int64_t>(destination_slots, {args.count});
  expect_slots(source_slots.name(), args.source_slots, args.count, 0, args.cache);
  expect_slots(destination_slots.name(), args.destination_slots, args.count, 0, args.cache);
  return args;
}

AttentionArgs attention_args(const ArrayView& query, const ArrayView& key_cache,
                             const ArrayView& value_cache, const ArrayView& block_table,
                             const ArrayView& row_splits, const ArrayView& context_lens,
                             const ArrayView& parents, float scale) {
  AttentionArgs args;
  args.cache = paged_cache(key_cache, value_cache, false);
  const int kv_heads = args.cache.num_kv_heads, head_dim = args.cache.head_dim;
  args.query = input<float>(query, {kAnySize, kAnySize, head_dim});
  const int64_t rows = query.size(0), heads = query.size(1);
  args.shape = {static_cast<int>(heads), kv_heads, head_dim};
  expect_heads(args.shape);
  if (args.cache.block_size == 0) throw ArgumentError("key_cache: block_size must be positive");
  context_lens.expect_ndim(1);
  const int64_t sequences = context_lens.size(0);
  args.block_table = input<int32_t>(block_table, {sequences, kAnySize});
  args.max_blocks = block_table.size(1);
  args.rows = {input<int32_t>(row_splits, {sequences + 1}), context_lens.data<int32_t>(),
               input<int32_t>(parents, {rows}), static_cast<int>(sequences),
               static_cast<int>(rows)};
  args.first_slot = 0;
  args.scale = scale;
  args.out = nullptr;
  args.plan = nullptr;
  args.workspace = nullptr;
  expect_attention_rows(args);
  return args;
}

MergeStatesArgs merge_states_args(const ArrayView& output_a, const ArrayView& lse_a,
                                  const ArrayView& output_b, const ArrayView& lse_b) {
  output_a.expect_ndim(3);
  const int64_t rows = output_a.size(0), heads = output_a.size(1), dim = output_a.size(2);
  MergeStatesArgs args;
  args.out_a = output_a.data<float>();
  args.lse_a = input<float>(lse_a, {rows, heads});
  args.out_b = input<float>(output_b, {rows, heads, dim});
  args.lse_b = input<float>(lse_b, {rows, heads});
  args.out = nullptr;
  args.lse = nullptr;
  args.pairs = rows * heads;
  args.head_dim = dim;
  return args;
}

}  // namespace fdspec
