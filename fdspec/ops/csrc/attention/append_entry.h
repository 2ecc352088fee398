// SPDX-License-Identifier: Apache-2.0
// Writes one key or value of one head into the paged cache. Kernel files only.
#pragma once

#include <limits>

#include "attention/paged_cache.h"
#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

// Up to this magnitude an int8 entry is zero, since 127 / magnitude could overflow.
inline constexpr float kSmallestEntry = 0x1p-100f;
inline constexpr float kLargestEntry = std::numeric_limits<float>::max();

FDSPEC_INLINE void write_bf16(const float* source, int dim, uint16_t* entry) {
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) F16::load(source + i).store_bf16(entry + i);
  if (i < dim) F16::load_partial(source + i, dim - i).store_bf16_partial(entry + i, dim - i);
}

// Codes -127..127 and their scale, the largest magnitude / 127. If a number is infinite or NaN, the
// scale is NaN and the codes are 0: rows that see the entry become NaN, and no others.
FDSPEC_INLINE void write_int8(const float* source, int dim, int8_t* entry) {
  // Magnitudes compare like integers, and so compared a NaN is the largest.
  I16 top = I16::zero();
  for (int i = 0; i < dim; i += kLanes) {
    top = max(top, abs(F16::load_partial(source + i, min_of(kLanes, dim - i))).as_int_bits());
  }
  const float largest = bit_cast<float>(top.reduce_max());
  float scale = 0.0f;
  if (largest > kSmallestEntry && largest <= kLargestEntry) {
    scale = largest / 127.0f;
    const F16 inverse = splat(127.0f / largest);
    for (int i = 0; i < dim; i += kLanes) {
      const int width = min_of(kLanes, dim - i);
      int8_t codes[kLanes];
      (F16::load_partial(source + i, width) * inverse).to_int().store_int8(codes);
      std::memcpy(entry + i, codes, static_cast<size_t>(width));
    }
  } else {
    std::memset(entry, 0, static_cast<size_t>(dim));
    if (!(largest <= kSmallestEntry)) scale = std::numeric_limits<float>::quiet_NaN();
  }
  std::memcpy(entry + dim, &scale, kScaleBytes);
}

// source [head_dim] becomes the entry at `offset`, in bytes, of the keys or values.
FDSPEC_INLINE void write_entry(const float* source, const PagedCache& cache, void* entries,
                               int64_t offset) {
  void* entry = static_cast<char*>(entries) + offset;
  switch (cache.type) {
    case CacheType::kFloat32:
      std::memcpy(entry, source, sizeof(float) * static_cast<size_t>(cache.head_dim));
      return;
    case CacheType::kBFloat16:
      return write_bf16(source, cache.head_dim, static_cast<uint16_t*>(entry));
    case CacheType::kInt8:
      return write_int8(source, cache.head_dim, static_cast<int8_t*>(entry));
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
