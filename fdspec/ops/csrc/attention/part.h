// SPDX-License-Identifier: Apache-2.0
// Steps of attention over one part of the keys with a query's scores beside each other:
// transposed loading and softmax.
#pragma once

#include "attention/keys.h"
#include "attention/states.h"
#include "attention/transpose.h"
#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

// Stores 16 keys' words `word` .. of elements, word j of key i being lane i of words[j], as floats:
// element e of the keys at target + e * kPartKeys.
template <CacheType kType>
FDSPEC_INLINE void store_elements(const I16 words[kLanes], int word, int width, float* target) {
#pragma GCC unroll 16
  for (int j = 0; j < kLanes; ++j) {
    if (j >= width) break;
    const I16 bits = words[j];
    if constexpr (kType == CacheType::kFloat32) {
      bits.as_float_bits().store(target + (word + j) * kPartKeys);
    } else if constexpr (kType == CacheType::kBFloat16) {
      // Two neighbouring elements in a word: the even one in its lower half.
      float* pair = target + 2 * (word + j) * kPartKeys;
      shift_left<16>(bits).as_float_bits().store(pair);
      cut_to_bf16(bits.as_float_bits()).store(pair + kPartKeys);
    } else {
      float* four = target + 4 * (word + j) * kPartKeys;
      shift_right_signed<24>(shift_left<24>(bits)).to_float().store(four);
      shift_right_signed<24>(shift_left<16>(bits)).to_float().store(four + kPartKeys);
      shift_right_signed<24>(shift_left<8>(bits)).to_float().store(four + 2 * kPartKeys);
      shift_right_signed<24>(bits).to_float().store(four + 3 * kPartKeys);
    }
  }
}

// keys[dim][kPartKeys] = entries[kPartKeys][dim] transposed, for the first `count` keys, rounded up
// to kLanes; keys that do not exist are those at `zeros`.
template <CacheType kType>
FDSPEC_INLINE void load_keys_transposed(const PagedCache& cache, const PartKeys& part,
                                        const float* zeros, float* keys) {
  constexpr int kElements = kType == CacheType::kInt8 ? 4 : kType == CacheType::kBFloat16 ? 2 : 1;
  const int num_words = cache.head_dim / kElements;
  for (int first = 0; first < part.count; first += kLanes) {
    for (int i = first; i < first + kLanes; ++i) prefetch_next(cache, part, i);
    for (int word = 0; word < num_words; word += kLanes) {
      const void* at[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const char* entry = first + i < part.count
                                ? static_cast<const char*>(cache.key) + part.offset[first + i]
                                : reinterpret_cast<const char*>(zeros);
        at[i] = entry + word * static_cast<int>(sizeof(int32_t));
      }
      const int width = min_of(kLanes, num_words - word);
      I16 words[kLanes];
      transpose_words(at, width, words);
      store_elements<kType>(words, word, width, keys + first);
    }
  }
}

// scales[kPartKeys] of the part's entries; 0 where there are none.
FDSPEC_INLINE void load_scales(const PagedCache& cache, const void* entries, const PartKeys& part,
                               float* scales) {
  const char* base = static_cast<const char*>(entries) + cache.head_dim;
  for (int i = 0; i < part.count; ++i) scales[i] = read_as<float>(base + part.offset[i]);
  for (int i = part.count; i < kPartKeys; ++i) scales[i] = 0.0f;
}

// The scales of a part of an int8 cache, in memory for two of [kPartKeys]; of another one none.
template <class Weights>
FDSPEC_INLINE PartScales load_part_scales(const PagedCache& cache, const PartKeys& part,
                                          float* memory) {
  if constexpr (!kHasScales<Weights>) return {nullptr, nullptr};
  load_scales(cache, cache.key, part, memory);
  load_scales(cache, cache.value, part, memory + kPartKeys);
  return {memory, memory + kPartKeys};
}

// Elements [first, first + kLanes) of an entry.
template <CacheType kType>
FDSPEC_INLINE F16 load_elements(const char* entry, int first) {
  if constexpr (kType == CacheType::kFloat32) {
    return F16::load(reinterpret_cast<const float*>(entry) + first);
  } else if constexpr (kType == CacheType::kBFloat16) {
    return F16::load_bf16(reinterpret_cast<const uint16_t*>(entry) + first);
  } else {
    return I16::load_int8(reinterpret_cast<const int8_t*>(entry) + first).to_float();
  }
}

// The first `width` of them; the others are 0.
template <CacheType kType>
FDSPEC_INLINE F16 load_some_elements(const char* entry, int first, int width) {
  constexpr int64_t kBytes = kType == CacheType::kInt8 ? 1 : kType == CacheType::kBFloat16 ? 2 : 4;
  alignas(64) char elements[kLanes * kBytes] = {};
  std::memcpy(elements, entry + first * kBytes, static_cast<size_t>(width * kBytes));
  return load_elements<kType>(elements, 0);
}

// A part's entries as a matrix of multiply.h, straight from the cache.
template <CacheType kType>
struct EntryRows {
  const char* base;
  const int64_t* offsets;  // in bytes

  FDSPEC_INLINE F16 load(int k, int column) const {
    return load_elements<kType>(base + offsets[k], column);
  }
};

// values[count][stride] = entries[count][dim] up to whole lanes; the padding is 0.
template <CacheType kType>
FDSPEC_INLINE void load_values(const PagedCache& cache, const PartKeys& part, float* values,
                               int64_t stride) {
  for (int key = 0; key < part.count; ++key) {
    const char* entry = static_cast<const char*>(cache.value) + part.offset[key];
    float* target = values + key * stride;
    int i = 0;
    for (; i + kLanes <= cache.head_dim; i += kLanes) {
      load_elements<kType>(entry, i).store(target + i);
    }
    if (i < cache.head_dim) {
      load_some_elements<kType>(entry, i, cache.head_dim - i).store(target + i);
    }
  }
}

// Turns the first `count` of kPartKeys products of query and key into what multiplies the values,
// the others into 0; writes the largest score and the sum of the weights. The sum adds four vectors
// as a tree, then their lanes.
template <class Weights>
FDSPEC_INLINE void softmax_part(float* scores, int count, PartScales scales, float* m, float* l) {
  constexpr int kPanels = kPartKeys / kLanes;
  F16 values[kPanels];
  F16 top = splat(-kInfinity);
  for (int i = 0; i < kPanels; ++i) {
    const M16 seen = M16::first(max_of(0, min_of(kLanes, count - i * kLanes)));
    F16 score = F16::load(scores + i * kLanes);
    if constexpr (kHasScales<Weights>) score = score * F16::load(scales.keys + i * kLanes);
    values[i] = select(seen, score, splat(-kInfinity));
    top = max(top, values[i]);
  }
  const float largest = top.reduce_max();
  for (int i = 0; i < kPanels; ++i) {
    values[i] = Weights::added(Weights::weight(values[i] - splat(largest)));
    F16 factor = values[i];
    if constexpr (kHasScales<Weights>) {
      factor = Weights::scaled(factor, F16::load(scales.values + i * kLanes));
    }
    factor.store(scores + i * kLanes);
  }
  *m = largest;
  *l = ((values[0] + values[1]) + (values[2] + values[3])).reduce_add();
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
