// SPDX-License-Identifier: Apache-2.0
#include "attention/paged_cache.h"

#include <cstring>
#include <initializer_list>

namespace fdspec {
namespace {

// Values that are worth waking a thread for.
constexpr int64_t kMinValuesPerSlice = 16384;

}  // namespace

void run_append_paged_kv(const AppendArgs& args) {
  const int64_t values = args.rows * args.cache.num_kv_heads * args.cache.head_dim;
  launch(append_paged_kv_kernel(), args, slices_for(values, kMinValuesPerSlice));
}

void run_compact_kv(const CompactArgs& args) {
  const PagedCache& cache = args.cache;
  const size_t entry_bytes = static_cast<size_t>(cache.entry_bytes());
  for (int64_t i = 0; i < args.count; ++i) {
    const int64_t source = args.source_slots[i];
    const int64_t destination = args.destination_slots[i];
    if (source == destination) continue;
    for (int head = 0; head < cache.num_kv_heads; ++head) {
      const int64_t from = cache.offset(source / cache.block_size, head,
                                        static_cast<int>(source % cache.block_size));
      const int64_t to = cache.offset(destination / cache.block_size, head,
                                      static_cast<int>(destination % cache.block_size));
      for (void* entries : {cache.key, cache.value}) {
        char* bytes = static_cast<char*>(entries);
        std::memcpy(bytes + to, bytes + from, entry_bytes);
      }
    }
  }
}

}  // namespace fdspec
