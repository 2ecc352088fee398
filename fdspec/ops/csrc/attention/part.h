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

// keys[dim][kPartKeys] = entries[kPartKeys][dim] transposed, for the first `count` keys, rounded up
// to kLanes; keys that do not exist are those at `zeros`.
FDSPEC_INLINE void load_keys_transposed(const PagedCache& cache, const PartKeys& part,
                                        const float* zeros, float* keys) {
  const int num_words = cache.is_bf16 ? cache.head_dim / 2 : cache.head_dim;
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
      float* target = keys + first;
      if (cache.is_bf16) {
        // Two neighbouring elements in a word: the even one in its lower half.
        const I16 upper = I16::broadcast(static_cast<int32_t>(0xFFFF0000));
#pragma GCC unroll 16
        for (int j = 0; j < kLanes; ++j) {
          if (j >= width) break;
          float* pair = target + 2 * (word + j) * kPartKeys;
          shift_left<16>(words[j]).as_float_bits().store(pair);
          (words[j] & upper).as_float_bits().store(pair + kPartKeys);
        }
      } else {
#pragma GCC unroll 16
        for (int j = 0; j < kLanes; ++j) {
          if (j >= width) break;
          words[j].as_float_bits().store(target + (word + j) * kPartKeys);
        }
      }
    }
  }
}

// values[count][stride] = entries[count][dim] up to whole lanes; the padding is 0.
FDSPEC_INLINE void load_values(const PagedCache& cache, const PartKeys& part, float* values,
                               int64_t stride) {
  for (int key = 0; key < part.count; ++key) {
    const char* entry = static_cast<const char*>(cache.value) + part.offset[key];
    float* target = values + key * stride;
    for (int i = 0; i < cache.head_dim; i += kLanes) {
      const int width = min_of(kLanes, cache.head_dim - i);
      const F16 value =
          cache.is_bf16
              ? F16::load_bf16_partial(reinterpret_cast<const uint16_t*>(entry) + i, width)
              : F16::load_partial(reinterpret_cast<const float*>(entry) + i, width);
      value.store(target + i);
    }
  }
}

// Turns the first `count` of kPartKeys scores into weights, the others into 0; writes the largest
// score and the sum of the weights. The sum adds four vectors as a tree, then their lanes.
template <class Weights>
FDSPEC_INLINE void softmax_part(float* scores, int count, float* m, float* l) {
  constexpr int kPanels = kPartKeys / kLanes;
  F16 values[kPanels];
  F16 top = splat(-kInfinity);
  for (int i = 0; i < kPanels; ++i) {
    const M16 seen = M16::first(max_of(0, min_of(kLanes, count - i * kLanes)));
    values[i] = select(seen, F16::load(scores + i * kLanes), splat(-kInfinity));
    top = max(top, values[i]);
  }
  const float largest = top.reduce_max();
  for (int i = 0; i < kPanels; ++i) {
    values[i] = Weights::weight(values[i] - splat(largest));
    if constexpr (Weights::kIsBf16) values[i] = Weights::cut(values[i]);
    values[i].store(scores + i * kLanes);
  }
  *m = largest;
  *l = ((values[0] + values[1]) + (values[2] + values[3])).reduce_add();
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
