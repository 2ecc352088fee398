// SPDX-License-Identifier: Apache-2.0
#include "step/rotate_append.h"

#include "attention/append_entry.h"
#include "elementwise/rms_norm_row.h"
#include "elementwise/rope_row.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

// out = head, normalised and rotated.
FDSPEC_INLINE void turn(const RotateAppendArgs& args, const HeadNorm& norm, int64_t row,
                        const float* head, float* out) {
  const int64_t half = args.shape.head_dim / 2;
  const int64_t table = args.positions[row] * half;
  if (norm.weight != nullptr) {
    normalize_row(head, norm.weight, norm.epsilon, args.shape.head_dim, out);
    head = out;
  }
  rotate_head(head, args.cos + table, args.sin + table, half, out);
}

}  // namespace

void rotate_append(const RotateAppendArgs& args, Slice slice) {
  const AttentionShape& shape = args.shape;
  const PagedCache& cache = args.cache;
  const int64_t dim = shape.head_dim;
  const int64_t heads_per_row = shape.num_heads + shape.num_kv_heads;
  const int64_t row_width = (heads_per_row + shape.num_kv_heads) * dim;
  const Range units = slice.share(args.rows * heads_per_row);
  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    const int64_t row = unit / heads_per_row;
    const int head = static_cast<int>(unit - row * heads_per_row);
    const float* source = args.qkv + row * row_width + head * dim;
    if (head < shape.num_heads) {
      float* query = args.query + (row * shape.num_heads + head) * dim;
      turn(args, args.query_norm, row, source, query);
      continue;
    }
    const int64_t slot = args.slots[row];
    const int64_t block = slot / cache.block_size;
    const int in_block = static_cast<int>(slot - block * cache.block_size);
    const int64_t entry = cache.offset(block, head - shape.num_heads, in_block);
    alignas(64) float key[kMaxHeadDim];
    turn(args, args.key_norm, row, source, key);
    write_entry(key, cache, cache.key, entry);
    write_entry(source + shape.num_kv_heads * dim, cache, cache.value, entry);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
