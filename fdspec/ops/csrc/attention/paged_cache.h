// SPDX-License-Identifier: Apache-2.0
// The paged KV cache of one layer, and the ops that write to it.
#pragma once

#include "common/dispatch.h"

namespace fdspec {

enum class CacheType { kFloat32, kBFloat16, kInt8 };

// Behind the codes of an int8 entry: the float that they are multiplied by. So an entry is whole
// wherever it is copied to, alone or with its block.
inline constexpr int kScaleBytes = 4;

// Keys and values are [num_blocks, num_kv_heads, block_size] entries each; an entry is head_dim
// numbers of one token and head.
struct PagedCache {
  void* key;
  void* value;
  CacheType type;
  int64_t num_blocks;
  int num_kv_heads;
  int block_size;
  int head_dim;

  FDSPEC_INLINE int64_t num_slots() const { return num_blocks * block_size; }
  FDSPEC_INLINE int64_t entry_bytes() const {
    if (type == CacheType::kInt8) return head_dim + kScaleBytes;
    return int64_t{head_dim} * (type == CacheType::kBFloat16 ? 2 : 4);
  }
  // Bytes from the start of the keys or values to a token's entry.
  FDSPEC_INLINE int64_t offset(int64_t block, int kv_head, int in_block) const {
    return ((block * num_kv_heads + kv_head) * block_size + in_block) * entry_bytes();
  }
};

struct AppendArgs {
  const float* key;    // [rows, num_kv_heads, head_dim]
  const float* value;  // [rows, num_kv_heads, head_dim]
  PagedCache cache;
  const int64_t* slots;  // [rows] block * block_size + offset in it; negative: not written
  int64_t rows;
};

// Slices split the rows.
FDSPEC_DECLARE_KERNEL(append_paged_kv, AppendArgs)

FDSPEC_EXPORT void run_append_paged_kv(const AppendArgs& args);

struct CompactArgs {
  PagedCache cache;
  const int64_t* source_slots;       // [count]
  const int64_t* destination_slots;  // [count]
  int64_t count;
};

// Copies entry after entry, in order.
FDSPEC_EXPORT void run_compact_kv(const CompactArgs& args);

}  // namespace fdspec
