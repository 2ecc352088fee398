// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include <type_traits>

#include "attention/multiply.h"
#include "attention/part.h"
#include "attention/worker.h"
#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

// Attends to a part with vectors of fp32. A score's sum runs over head_dim, so keys are transposed:
// lanes are keys there, and elements of the values later on.
template <class WeightsOfCache>
class VectorPart {
 public:
  using Weights = WeightsOfCache;

  explicit VectorPart(const SliceStep& step) : step_(step) {
    std::memset(step.mine(step.scratch.zeros), 0, sizeof(float) * static_cast<size_t>(step.dim));
  }

  void load_queries(const AttentionItem& item) {
    const F16 scale = splat(Weights::scale(step_.args.scale));
    float* target = step_.mine(step_.scratch.queries);
    for (int query = 0; query < step_.num_queries(item); ++query, target += step_.dim) {
      const float* source = step_.args.query + step_.query_index(item, query) * step_.dim;
      for (int i = 0; i < step_.dim; i += kLanes) {
        const int width = min_of(kLanes, step_.dim - i);
        F16 value = F16::load_partial(source + i, width) * scale;
        if constexpr (Weights::kIsBf16) {
          uint16_t rounded[kLanes];
          value.store_bf16(rounded);
          value = F16::load_bf16(rounded);
        }
        value.store_partial(target + i, width);
      }
    }
  }

  void attend(const AttentionItem&, const PartKeys& keys, Span rows, States target) {
    const PagedCache& cache = step_.args.cache;
    const Span queries{rows.begin * step_.group, rows.end * step_.group};
    float* values = step_.mine(step_.scratch.values);
    load_keys_transposed<Weights::kCache>(cache, keys, step_.mine(step_.scratch.zeros),
                                          step_.mine(step_.scratch.keys));
    const PartScales scales =
        load_part_scales<Weights>(cache, keys, step_.mine(step_.scratch.scales));
    // One tile of queries reads the values once, straight from the cache.
    const bool is_direct = queries.end - queries.begin <= kFloatRows && step_.dim % kLanes == 0;
    if (!is_direct) load_values<Weights::kCache>(cache, keys, values, target.stride);
    const States states = states_in(step_.mine(step_.scratch.tile), kTileQueries, target.stride);
    for (int query = queries.begin; query < queries.end; query += kFloatRows) {
      const Span tile{query, min_of(query + kFloatRows, queries.end)};
      score_tile(keys, tile, scales, states);
      if (is_direct) {
        const EntryRows<Weights::kCache> rows_of_cache{static_cast<const char*>(cache.value),
                                                       keys.offset};
        sum_values(keys, tile, rows_of_cache, states);
      } else {
        sum_values(keys, tile, FloatMatrix{values, target.stride}, states);
      }
      fold_lanes<Weights>(target.from(query), states, tile.end - tile.begin, num_columns());
    }
  }

  void write(const float* o, F16 factor, float* out) const {
    for (int i = 0; i < step_.dim; i += kLanes) {
      (F16::load(o + i) * factor).store_partial(out + i, min_of(kLanes, step_.dim - i));
    }
  }

 private:
  using Chains = std::conditional_t<Weights::kIsBf16, PairChains, OneChain>;

  // Weights of a tile of queries, and their m and l.
  void score_tile(const PartKeys& keys, Span tile, PartScales scales, States states) {
    float* scores = step_.mine(step_.scratch.scores);
    const float* queries = step_.mine(step_.scratch.queries) + tile.begin * step_.dim;
    const Product product{queries, step_.dim, scores, kPartKeys, 0, step_.dim, false};
    multiply<Chains>(product, FloatMatrix{step_.mine(step_.scratch.keys), kPartKeys},
                     tile.end - tile.begin, (keys.count + kLanes - 1) / kLanes * kLanes);
    for (int i = 0; i < tile.end - tile.begin; ++i) {
      softmax_part<Weights>(scores + i * kPartKeys, keys.visible((tile.begin + i) / step_.group),
                            scales, states.m + i, states.l + i);
    }
  }

  // o of a tile of queries: the keys that all of them see together, then the rest row by row.
  // A row never touches a value that it does not see, as 0 * NaN would be NaN.
  template <class Matrix>
  void sum_values(const PartKeys& keys, Span tile, const Matrix& values, States states) {
    const float* weights = step_.mine(step_.scratch.scores);
    const int first_row = tile.begin / step_.group, last_row = (tile.end - 1) / step_.group;
    int num_common = keys.visible(first_row);
    if (num_common < keys.visible(last_row)) num_common -= num_common % Chains::kBlock;
    Product product{weights, kPartKeys, states.o, states.stride, 0, num_common, false};
    multiply<Chains>(product, values, tile.end - tile.begin, num_columns());
    product.k_begin = num_common;
    product.accumulate = true;
    for (int row = first_row; row <= last_row; ++row) {
      product.k_end = keys.visible(row);
      if (product.k_end == num_common) continue;
      const Span queries{max_of(tile.begin, row * step_.group),
                         min_of(tile.end, (row + 1) * step_.group)};
      product.a = weights + (queries.begin - tile.begin) * kPartKeys;
      product.c = states.o + (queries.begin - tile.begin) * states.stride;
      multiply<Chains>(product, values, queries.end - queries.begin, num_columns());
    }
  }

  int num_columns() const { return (step_.dim + kLanes - 1) / kLanes * kLanes; }

  const SliceStep& step_;
};

}  // namespace

void cascade_append_attention(const AttentionArgs& args, Slice slice) {
  switch (args.cache.type) {
    case CacheType::kFloat32:
      return Worker<VectorPart<FloatWeights>>(args, slice).run();
    case CacheType::kBFloat16:
      return Worker<VectorPart<BFloat16Weights>>(args, slice).run();
    case CacheType::kInt8:
      return Worker<VectorPart<Int8Weights>>(args, slice).run();
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
