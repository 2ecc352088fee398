// SPDX-License-Identifier: Apache-2.0
// States of attention: for each query m, the largest score; l, the sum of its weights; o, the
// weighted sum of the values. And what depends on the cache's dtype: the weight of a score.
#pragma once

#include <limits>

#include "attention/attention.h"
#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Half-open range of an item's rows or queries; query = row * group + head of the group.
struct Span {
  int begin;
  int end;
};

struct States {
  float* m;        // -inf: the query sees nothing, and its o is not read
  float* l;        // 0 then
  float* o;        // [queries, stride]
  int64_t stride;  // in floats

  FDSPEC_INLINE States from(int query) const {
    return {m + query, l + query, o + query * stride, stride};
  }
};

// Whole lines of queries, so that vectors of m and l may be read and written past the last one.
FDSPEC_INLINE int query_capacity(int num_queries) {
  return (num_queries + kLanes - 1) / kLanes * kLanes;
}

// The states of num_queries queries in memory of attention_states_floats().
FDSPEC_INLINE States states_in(float* memory, int num_queries, int64_t stride) {
  const int capacity = query_capacity(num_queries);
  return {memory, memory + capacity, memory + 2 * capacity, stride};
}

FDSPEC_INLINE void clear_states(States states, int num_queries) {
  for (int query = 0; query < num_queries; query += kLanes) {
    splat(-kInfinity).store(states.m + query);
    F16::zero().store(states.l + query);
  }
}

// Scales of a part's keys and values in an int8 cache, [kPartKeys] each; null for other caches.
struct PartScales {
  const float* keys;
  const float* values;
};

// Of float caches: e to the power of a score's difference from the largest.
struct FloatWeights {
  static constexpr CacheType kCache = CacheType::kFloat32;
  static constexpr bool kIsBf16 = false;

  static FDSPEC_INLINE float scale(float scale) { return scale; }
  // Weight of a score against another one.
  static FDSPEC_INLINE F16 weight(F16 difference) { return exp(difference); }
  // The weight as l adds it.
  static FDSPEC_INLINE F16 added(F16 weight) { return weight; }
};

FDSPEC_INLINE F16 cut_to_bf16(F16 a) {
  const I16 upper = I16::broadcast(static_cast<int32_t>(0xFFFF0000));
  return (a.as_int_bits() & upper).as_float_bits();
}

// Of bfloat16 caches: scores are in units of log2 e, and a weight is cut to bfloat16. Cutting
// spreads no wider than rounding does, and its bias cancels, as l is the sum of the cut weights.
struct BFloat16Weights {
  static constexpr CacheType kCache = CacheType::kBFloat16;
  static constexpr bool kIsBf16 = true;

  static FDSPEC_INLINE float scale(float scale) { return scale * 1.44269504f; }
  static FDSPEC_INLINE F16 weight(F16 difference) { return exp2_of_negative(difference); }
  static FDSPEC_INLINE F16 added(F16 weight) { return cut_to_bf16(weight); }
};

// Of int8 caches: the codes are multiplied as bfloat16, which holds them exactly. What multiplies a
// value's codes is weight * scale, rounded to bfloat16; l adds weights as they are.
struct Int8Weights {
  static constexpr CacheType kCache = CacheType::kInt8;
  static constexpr bool kIsBf16 = true;

  static FDSPEC_INLINE float scale(float scale) { return BFloat16Weights::scale(scale); }
  static FDSPEC_INLINE F16 weight(F16 difference) { return BFloat16Weights::weight(difference); }
  static FDSPEC_INLINE F16 added(F16 weight) { return weight; }
  // To the nearest, halves up; nothing of a value that has no weight, whose scale may be NaN.
  static FDSPEC_INLINE F16 scaled(F16 weight, F16 value_scale) {
    const I16 bits = (weight * value_scale).as_int_bits() + I16::broadcast(0x8000);
    return select(weight > F16::zero(), cut_to_bf16(bits.as_float_bits()), F16::zero());
  }
};

template <class Weights>
inline constexpr bool kHasScales = Weights::kCache == CacheType::kInt8;

// left = left followed by right, for up to kLanes queries. An empty right changes no bit.
template <class Weights>
FDSPEC_INLINE void fold_lanes(States left, States right, int num_queries, int num_columns) {
  const F16 left_m = F16::load_partial(left.m, num_queries);
  const F16 right_m = F16::load_partial(right.m, num_queries);
  const F16 left_l = F16::load_partial(left.l, num_queries);
  const F16 right_l = F16::load_partial(right.l, num_queries);
  const M16 has_left = ~(left_l == F16::zero()), has_right = ~(right_l == F16::zero());
  if (!has_right.any()) return;
  const F16 largest = max(left_m, right_m);
  const F16 left_weight = select(has_left, Weights::weight(left_m - largest), F16::zero());
  const F16 right_weight = select(has_right, Weights::weight(right_m - largest), F16::zero());
  largest.store_partial(left.m, num_queries);
  (left_l * left_weight + right_l * right_weight).store_partial(left.l, num_queries);
  float left_weights[kLanes], right_weights[kLanes];
  left_weight.store(left_weights);
  right_weight.store(right_weights);
  const uint32_t left_bits = has_left.bits(), right_bits = has_right.bits();
  for (int query = 0; query < num_queries; ++query) {
    if ((right_bits >> query & 1) == 0) continue;
    float* to = left.o + query * left.stride;
    const float* from = right.o + query * right.stride;
    if ((left_bits >> query & 1) == 0) {
      for (int i = 0; i < num_columns; i += kLanes) F16::load(from + i).store(to + i);
      continue;
    }
    const F16 keep = splat(left_weights[query]), add = splat(right_weights[query]);
    for (int i = 0; i < num_columns; i += kLanes) {
      fma(F16::load(to + i), keep, F16::load(from + i) * add).store(to + i);
    }
  }
}

// The same for any number of queries.
template <class Weights>
FDSPEC_INLINE void fold_states(States left, States right, int num_queries, int num_columns) {
  for (int query = 0; query < num_queries; query += kLanes) {
    fold_lanes<Weights>(left.from(query), right.from(query), min_of(kLanes, num_queries - query),
                        num_columns);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
