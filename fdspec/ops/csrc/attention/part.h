// SPDX-License-Identifier: Apache-2.0
// Steps of attention over one part of the keys: transposed loading, softmax, folding of states.
//
// The state of a query is stride floats: m, l, padding up to kStateHeader, then o.
#pragma once

#include <limits>

#include "attention/attention_plan.h"
#include "attention/transpose.h"
#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

inline constexpr int kStateHeader = kLanes;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Marks states as empty; an empty state's o is never read.
FDSPEC_INLINE void clear_states(float* states, int count, int64_t stride) {
  for (int i = 0; i < count; ++i) {
    states[i * stride] = -kInfinity;
    states[i * stride + 1] = 0.0f;
  }
}

// keys[dim][kPartKeys] = rows[kPartKeys][dim] transposed, for the first `count` keys, rounded up
// to kLanes.
FDSPEC_INLINE void load_keys_transposed(const void* const* rows, int count, int dim, bool is_bf16,
                                        float* keys) {
  const int num_words = is_bf16 ? dim / 2 : dim;
  for (int first = 0; first < count; first += kLanes) {
    for (int word = 0; word < num_words; word += kLanes) {
      const void* at[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        at[i] = static_cast<const int32_t*>(rows[first + i]) + word;
      }
      const int width = min_of(kLanes, num_words - word);
      I16 words[kLanes];
      transpose_words(at, width, words);
      float* target = keys + first;
      if (is_bf16) {
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

// values[count][padded dim] = rows[count][dim]; the padding is 0.
FDSPEC_INLINE void load_values(const void* const* rows, int count, int dim, bool is_bf16,
                               float* values, int64_t stride) {
  for (int key = 0; key < count; ++key) {
    float* target = values + key * stride;
    for (int i = 0; i < dim; i += kLanes) {
      const int width = min_of(kLanes, dim - i);
      const F16 value =
          is_bf16 ? F16::load_bf16_partial(static_cast<const uint16_t*>(rows[key]) + i, width)
                  : F16::load_partial(static_cast<const float*>(rows[key]) + i, width);
      value.store(target + i);
    }
  }
}

// Turns the first `count` of kPartKeys scores into exp(score - m), the others into 0; writes m and
// their sum l to the state. l adds four vectors as a tree, then their lanes.
FDSPEC_INLINE void softmax_part(float* scores, int count, float* state) {
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
    values[i] = exp(values[i] - splat(largest));
    values[i].store(scores + i * kLanes);
  }
  state[0] = largest;
  state[1] = ((values[0] + values[1]) + (values[2] + values[3])).reduce_add();
}

// left = left followed by right. An empty right changes no bit.
FDSPEC_INLINE void fold_state(float* left, const float* right, int padded_dim) {
  if (right[1] == 0.0f) return;
  if (left[1] == 0.0f) {
    std::memcpy(left, right, sizeof(float) * static_cast<size_t>(kStateHeader + padded_dim));
    return;
  }
  const float largest = max_of(left[0], right[0]);
  const F16 shifts = select(M16::first(1), splat(left[0]), splat(right[0])) - splat(largest);
  float weights[kLanes];
  exp(shifts).store(weights);
  left[0] = largest;
  left[1] = left[1] * weights[0] + right[1] * weights[1];
  const F16 left_weight = splat(weights[0]), right_weight = splat(weights[1]);
  for (int i = kStateHeader; i < kStateHeader + padded_dim; i += kLanes) {
    fma(F16::load(left + i), left_weight, F16::load(right + i) * right_weight).store(left + i);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
