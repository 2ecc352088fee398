// SPDX-License-Identifier: Apache-2.0
// Which keys of a sequence an item's rows meet in one part, and where in the cache they are.
#pragma once

#include "attention/attention.h"
#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

// Some keys of one part and who sees them: row r sees the first min(count, base + r).
struct PartKeys {
  int64_t offset[kPartKeys];  // of the entry, in bytes from the start of the key or value cache
  // Of each kLanes keys, those that exist follow each other in memory, inside a block that goes on
  // for kLanes entries at least.
  bool in_line[kPartKeys / kLanes];
  int count;
  int base;
  const PartKeys* next;  // kPartKeys keys that will be needed after these, or null

  FDSPEC_INLINE int visible(int row) const { return min_of(count, base + row); }
};

// Finds keys [begin, end) of the part, which are keys of the item's sequence that follow each other
// from `number` on.
FDSPEC_INLINE void locate_run(const AttentionArgs& args, const AttentionItem& item, int begin,
                              int end, int number, PartKeys* keys) {
  const PagedCache& cache = args.cache;
  const int32_t* blocks = args.block_table + item.sequence * args.max_blocks;
  const int64_t entry_bytes = cache.entry_bytes();
  int slot = args.first_slot + number;
  for (int i = begin; i < end;) {
    const int block = slot / cache.block_size;
    const int in_block = slot - block * cache.block_size;
    const int64_t offset = cache.offset(blocks[block], item.kv_head, in_block);
    const int count = min_of(end - i, cache.block_size - in_block);
    for (int j = 0; j < count; ++j) keys->offset[i + j] = offset + j * entry_bytes;
    for (int lane = (i + kLanes - 1) / kLanes; (lane + 1) * kLanes <= i + count; ++lane) {
      keys->in_line[lane] = true;
    }
    i += count;
    slot += count;
  }
}

// Finds the sequence's keys [first, first + count).
FDSPEC_INLINE void locate_keys(const AttentionArgs& args, const AttentionItem& item, int first,
                               int count, PartKeys* keys) {
  for (bool& in_line : keys->in_line) in_line = false;
  keys->count = count;
  keys->next = nullptr;
  locate_run(args, item, 0, count, first, keys);
  const int last_lane = count / kLanes;
  const int block_size = args.cache.block_size;
  const int last_slot = args.first_slot + first + last_lane * kLanes;
  if (count % kLanes != 0 && last_slot % block_size + kLanes <= block_size) {
    keys->in_line[last_lane] = true;
  }
}

// Finds the tokens at positions [first, first + kPartKeys) that a tree row sees: those of the
// context and the row's path. Returns false if there are none.
FDSPEC_INLINE bool locate_path(const AttentionArgs& args, const AttentionItem& item, int row,
                               int first, PartKeys* keys) {
  const int32_t* parents = args.rows.parents + item.first_row - item.row_offset;
  int position = item.context + args.plan->depth(item.first_row + row);
  const int count = min_of(kPartKeys, position + 1 - first);
  if (count <= 0) return false;
  for (bool& in_line : keys->in_line) in_line = false;
  keys->count = count;
  keys->next = nullptr;
  locate_run(args, item, 0, min_of(count, max_of(0, item.context - first)), first, keys);
  for (int node = item.row_offset + row; node >= 0 && position >= first; --position) {
    const int at = position - first;
    if (at < kPartKeys) locate_run(args, item, at, at + 1, item.context + node, keys);
    node = parents[node];
  }
  return true;
}

// Asks for key i of the next part before it is needed: blocks are scattered over memory, so the
// processor cannot foresee where the next one begins, as it does for the values behind the first.
// Requests beside other work go twice as fast as many at once.
FDSPEC_INLINE void prefetch_next(const PagedCache& cache, const PartKeys& keys, int i) {
  if (keys.next == nullptr) return;
  constexpr int kLineBytes = 64;
  const char* key = static_cast<const char*>(cache.key) + keys.next->offset[i];
  for (int byte = 0; byte < cache.entry_bytes(); byte += kLineBytes) prefetch(key + byte);
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
