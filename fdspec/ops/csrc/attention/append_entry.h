// SPDX-License-Identifier: Apache-2.0
// Writes one key or value of one head into the paged cache. Kernel files only.
#pragma once

#include "attention/paged_cache.h"
#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

// source [dim] becomes the entry at `offset`, in elements, of a cache.
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

}  // namespace FDSPEC_ISA
}  // namespace fdspec
