// SPDX-License-Identifier: Apache-2.0
#include "attention/paged_cache.h"
#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

FDSPEC_INLINE void write_entry(const float* source, int dim, bool as_bf16, void* cache,
                               int64_t offset) {
  if (!as_bf16) {
    std::memcpy(static_cast<float*>(cache) + offset, source,
                sizeof(float) * static_cast<size_t>(dim));
    return;
  }
  uint16_t* target = static_cast<uint16_t*>(cache) + offset;
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) F16::load(source + i).store_bf16(target + i);
  if (i < dim) F16::load_partial(source + i, dim - i).store_bf16_partial(target + i, dim - i);
}

}  // namespace

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
      write_entry(args.key + from, cache.head_dim, cache.is_bf16, cache.key, to);
      write_entry(args.value + from, cache.head_dim, cache.is_bf16, cache.value, to);
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
