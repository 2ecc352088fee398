// SPDX-License-Identifier: Apache-2.0
#include "attention/append_entry.h"

namespace fdspec {
namespace FDSPEC_ISA {

void append_paged_kv(const AppendArgs& args, Slice slice) {
  const PagedCache& cache = args.cache;
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t slot = args.slots[row];
    if (slot < 0) continue;
    const int64_t block = slot / cache.block_size;
    const int in_block = static_cast<int>(slot - block * cache.block_size);
    for (int head = 0; head < cache.num_kv_heads; ++head) {
      const int64_t from = (row * cache.num_kv_heads + head) * cache.head_dim;
      const int64_t to = cache.offset(block, head, in_block);
      write_entry(args.key + from, cache, cache.key, to);
      write_entry(args.value + from, cache, cache.value, to);
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
