// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include <immintrin.h>

#include "attention/part.h"
#include "attention/tile_softmax.h"
#include "attention/worker.h"
#include "common/tiles.h"

namespace fdspec {
namespace amx {
namespace {

// Dimensions of a score, or keys of an output, that one tile product takes.
constexpr int kBlock = 32;
constexpr int kTileFloats = kTileBytes / 4;
constexpr int kTileHalves = kTileBytes / 2;

// Keys as the rows of tiles of kLanes keys.
struct KeyRows {
  const char* base[kPartKeys / kLanes];
  int num_lanes;   // tiles with keys
  int64_t stride;  // in bytes
};

// Attends to a part with tile products of bfloat16, 16 queries at a time. Scores are made with keys
// as rows and queries as columns, so that keys need no packing; outputs with queries as rows, from
// values whose rows have been interleaved in pairs. That leaves the columns of o in an order of
// their own inside each 32: see write(). Codes of an int8 cache become bfloat16 once for all
// queries.
template <class WeightsOfCache>
class TilePart {
 public:
  using Weights = WeightsOfCache;

  explicit TilePart(const SliceStep& step)
      : step_(step), padded_dim_(static_cast<int>(step.scratch.output_stride)), scope_(shapes()) {}

  // Packs the queries of each tile: [padded dim / 2][16 queries] words of two dimensions.
  void load_queries(const AttentionItem& item) {
    const F16 scale = splat(Weights::scale(step_.args.scale));
    const int num_queries = step_.num_queries(item);
    uint16_t* rows = halves(step_.scratch.keys);
    int32_t* query_rows = row_numbers();
    int row = 0, head = 0;
    for (int first = 0; first < num_queries; first += kLanes) {
      for (int i = 0; i < kLanes; ++i) {
        query_rows[first + i] = row;
        const float* source =
            row < item.num_rows ? step_.args.query + step_.query_index(item, row, head) * step_.dim
                                : nullptr;
        round_query(source, scale, rows + i * padded_dim_);
        if (++head == step_.group) {
          head = 0;
          ++row;
        }
      }
      for (int block = 0; block < padded_dim_; block += kBlock) {
        const void* at[kLanes];
        for (int i = 0; i < kLanes; ++i) at[i] = rows + i * padded_dim_ + block;
        I16 words[kLanes];
        transpose_words(at, kLanes, words);
        uint16_t* tile = query_tiles(first) + block / kBlock * kTileHalves;
        for (int i = 0; i < kLanes; ++i) words[i].store(tile + i * kBlock);
      }
    }
  }

  void attend(const AttentionItem& item, const PartKeys& keys, Span rows, States target) {
    const bool all_see_all = keys.visible(rows.begin) == keys.visible(rows.end - 1);
    if (!all_see_all && !kIsInt8 && has_special_values(keys)) {
      // 0 * NaN would be NaN in the rows that do not see it; so each row goes by itself.
      for (int row = rows.begin; row < rows.end; ++row) {
        PartKeys seen = keys;
        seen.count = keys.visible(row);
        seen.base = kPartKeys;
        attend(item, seen, {row, row + 1}, target);
      }
      return;
    }
    const bool is_masked =
        keys.visible(rows.begin) < kPartKeys || rows.begin > 0 || rows.end < item.num_rows;
    const KeyRows key_rows = find_key_rows(keys);
    const PartScales scales =
        load_part_scales<Weights>(step_.args.cache, keys, step_.mine(step_.scratch.scales));
    const int end = rows.end * step_.group;
    int query = rows.begin * step_.group / kLanes * kLanes;
    float* scores = step_.mine(step_.scratch.scores);
    float* next_scores = scores + kPartKeys * kTileQueries;
    multiply_keys(key_rows, query);
    pack_values(keys);
    store_scores(scores);
    const States states = states_in(step_.mine(step_.scratch.tile), kTileQueries, target.stride);
    for (; query < end; query += kLanes) {
      // The processor works on the next tile's products while it does this one's softmax. They
      // stay in the tiles so long: stores under way would hold up loads at like addresses.
      const bool has_next = query + kLanes < end;
      if (has_next) multiply_keys(key_rows, query + kLanes);
      const int width = min_of(kLanes, step_.num_queries(item) - query);
      if (kIsInt8) scale_scores(scores, scales.keys);
      if (is_masked) {
        weigh_masked(scores, width, visible(keys, rows, query), scales.values, states);
      } else {
        weigh(scores, width, scales.values, states);
      }
      if (has_next) store_scores(next_scores);
      multiply_values(keys.count, states);
      fold_lanes<Weights>(target.from(query), states, width, padded_dim_);
      float* used = scores;
      scores = next_scores;
      next_scores = used;
    }
  }

  // Columns 8k .. 8k + 3 and 8k + 4 .. 8k + 7 of each 32 are 4k .. 4k + 3 of the first and second
  // vector of o.
  void write(const float* o, F16 factor, float* out) const {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int i = 0; i < step_.dim; i += kBlock) {
      const __m512 low = (F16::load(o + i) * factor).v;
      const __m512 high = (F16::load(o + i + kLanes) * factor).v;
      const int rest = step_.dim - i;
      F16{_mm512_permutex2var_ps(low, first, high)}.store_partial(out + i, min_of(kLanes, rest));
      if (rest <= kLanes) continue;
      F16{_mm512_permutex2var_ps(low, second, high)}.store_partial(out + i + kLanes,
                                                                   min_of(kLanes, rest - kLanes));
    }
  }

 private:
  static constexpr bool kIsInt8 = kHasScales<WeightsOfCache>;

  // A query scaled and rounded, and zeros behind it; only zeros if there is none.
  FDSPEC_INLINE void round_query(const float* source, F16 scale, uint16_t* target) const {
    for (int i = 0; i < padded_dim_; i += kBlock) {
      const auto load = [&](int first) {
        const int width = source == nullptr ? 0 : max_of(0, min_of(kLanes, step_.dim - first));
        return (F16::load_partial(source + first, width) * scale).v;
      };
      // Products are never denormal, which this instruction would take as 0.
      const __m512bh rounded = _mm512_cvtne2ps_pbh(load(i + kLanes), load(i));
      std::memcpy(target + i, &rounded, sizeof(rounded));
    }
  }

  static TileShapes shapes() {
    TileShapes shapes;
    for (int tile = 0; tile < kNumTiles; ++tile) shapes.set(tile, kLanes, 4 * kLanes);
    return shapes;
  }

  // Keys that each query of a tile sees; none outside of the rows.
  FDSPEC_INLINE I16 visible(const PartKeys& keys, Span rows, int query) const {
    const I16 row = I16::load(row_numbers() + query);
    const M16 is_inside = ~(row < I16::broadcast(rows.begin)) & (row < I16::broadcast(rows.end));
    const I16 count = min(I16::broadcast(keys.count), row + I16::broadcast(keys.base));
    return select(is_inside, count, I16::zero());
  }

  // The part's keys in the cache where they lie in line there, as bfloat16; else copies.
  FDSPEC_INLINE KeyRows find_key_rows(const PartKeys& keys) const {
    const PagedCache& cache = step_.args.cache;
    const char* base = static_cast<const char*>(cache.key);
    const int num_lanes = (keys.count + kLanes - 1) / kLanes;
    bool all_in_line = !kIsInt8 && step_.dim % kBlock == 0;
    for (int lane = 0; lane < num_lanes; ++lane) all_in_line &= keys.in_line[lane];
    KeyRows rows;
    rows.num_lanes = num_lanes;
    rows.stride = (all_in_line ? step_.dim : padded_dim_) * static_cast<int>(sizeof(uint16_t));
    uint16_t* copies = halves(step_.scratch.keys);
    for (int lane = 0; lane < num_lanes; ++lane) {
      if (all_in_line) {
        rows.base[lane] = base + keys.offset[lane * kLanes];
        continue;
      }
      rows.base[lane] = reinterpret_cast<const char*>(copies + lane * kLanes * padded_dim_);
      for (int key = lane * kLanes; key < (lane + 1) * kLanes; ++key) {
        copy_padded(key < keys.count ? base + keys.offset[key] : nullptr,
                    copies + key * padded_dim_);
      }
    }
    return rows;
  }

  // An entry of the cache and zeros behind it; only zeros if there is none.
  FDSPEC_INLINE void copy_padded(const char* entry, uint16_t* target) const {
    for (int i = 0; i < padded_dim_; i += kBlock) {
      _mm512_storeu_si512(target + i,
                          entry == nullptr ? _mm512_setzero_si512() : load_halves(entry, i));
    }
  }

  // Elements [first, first + 32) of an entry as bfloat16, zeros beyond its end.
  FDSPEC_INLINE __m512i load_halves(const char* entry, int first) const {
    const int rest = step_.dim - first;
    const __mmask32 mask = rest >= kBlock ? ~__mmask32{0} : (__mmask32{1} << rest) - 1;
    if constexpr (kIsInt8) {
      return bf16_of_codes(_mm256_maskz_loadu_epi8(mask, entry + first));
    } else {
      return _mm512_maskz_loadu_epi16(mask, reinterpret_cast<const uint16_t*>(entry) + first);
    }
  }

  // The same of an entry that goes on for so long.
  FDSPEC_INLINE __m512i load_whole_halves(const char* entry, int first) const {
    if constexpr (kIsInt8) {
      return bf16_of_codes(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(entry + first)));
    } else {
      return _mm512_loadu_si512(reinterpret_cast<const uint16_t*>(entry) + first);
    }
  }

  static FDSPEC_INLINE __m512i bf16_of_codes(__m256i codes) {
    const auto widen = [](__m128i half) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(half)); };
    const __m512bh halves = _mm512_cvtne2ps_pbh(widen(_mm256_extracti128_si256(codes, 1)),
                                                widen(_mm256_castsi256_si128(codes)));
    return bit_cast<__m512i>(halves);
  }

  // Interleaves the values of keys 2i and 2i + 1 into row i of [pairs of keys, padded dim] words,
  // of which every 16 x 16 are a tile; keys that do not exist are zeros.
  FDSPEC_INLINE void pack_values(const PartKeys& keys) const {
    keys.count == kPartKeys&& step_.dim % kBlock == 0 ? pack_values<true>(keys)
                                                      : pack_values<false>(keys);
  }

  template <bool kIsWhole>
  FDSPEC_INLINE void pack_values(const PartKeys& keys) const {
    const char* base = static_cast<const char*>(step_.args.cache.value);
    uint16_t* pair = halves(step_.scratch.values);
    const int end = (keys.count + kBlock - 1) / kBlock * kBlock;
    for (int key = 0; key < end; key += 2) {
      prefetch_next(step_.args.cache, keys, key);
      prefetch_next(step_.args.cache, keys, key + 1);
      for (int i = 0; i < padded_dim_; i += kBlock, pair += 2 * kBlock) {
        const auto load = [&](int at) {
          const char* entry = base + keys.offset[at];
          if (kIsWhole) return load_whole_halves(entry, i);
          return at < keys.count ? load_halves(entry, i) : _mm512_setzero_si512();
        };
        const __m512i even = load(key), odd = load(key + 1);
        _mm512_store_si512(pair, _mm512_unpacklo_epi16(even, odd));
        _mm512_store_si512(pair + kBlock, _mm512_unpackhi_epi16(even, odd));
      }
    }
  }

  // Is a value infinite or NaN?
  FDSPEC_INLINE bool has_special_values(const PartKeys& keys) const {
    const char* base = static_cast<const char*>(step_.args.cache.value);
    const __m512i exponent = _mm512_set1_epi16(0x7F80);
    __mmask32 special = 0;
    for (int key = 0; key < keys.count; ++key) {
      for (int i = 0; i < step_.dim; i += kBlock) {
        const __m512i bits = _mm512_and_si512(load_halves(base + keys.offset[key], i), exponent);
        special |= _mm512_cmpeq_epi16_mask(bits, exponent);
      }
    }
    return special != 0;
  }

  // Scores of a tile of queries, [kPartKeys][16 queries] in tiles 0 .. 3; 0 where there are no
  // keys.
  FDSPEC_INLINE void multiply_keys(const KeyRows& keys, int query) const {
    const uint16_t* queries = query_tiles(query);
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
    for (int i = 0; i < padded_dim_; i += kBlock, queries += kTileHalves) {
      const int64_t offset = i * static_cast<int>(sizeof(uint16_t));
      load_tile<4>(queries, kBlock * sizeof(uint16_t));
      load_tile<5>(keys.base[0] + offset, keys.stride);
      multiply_bf16<0, 5, 4>();
      if (keys.num_lanes == 1) continue;
      load_tile<6>(keys.base[1] + offset, keys.stride);
      multiply_bf16<1, 6, 4>();
      if (keys.num_lanes == 2) continue;
      load_tile<7>(keys.base[2] + offset, keys.stride);
      multiply_bf16<2, 7, 4>();
      if (keys.num_lanes == 3) continue;
      load_tile<5>(keys.base[3] + offset, keys.stride);
      multiply_bf16<3, 5, 4>();
    }
  }

  FDSPEC_INLINE void store_scores(float* scores) const {
    constexpr int64_t kRowBytes = kTileQueries * sizeof(float);
    store_tile<0>(scores, kRowBytes);
    store_tile<1>(scores + kTileFloats, kRowBytes);
    store_tile<2>(scores + 2 * kTileFloats, kRowBytes);
    store_tile<3>(scores + 3 * kTileFloats, kRowBytes);
  }

  // Softmax of a tile of `width` queries.
  FDSPEC_INLINE void weigh(const float* scores, int width, const float* value_scales,
                           States states) const {
    uint32_t* pairs = reinterpret_cast<uint32_t*>(step_.mine(step_.scratch.weights));
    if (width <= 4) {
      softmax_tile<4, Weights>(scores, value_scales, pairs, tile_weights(), states);
    } else if (width <= 8) {
      softmax_tile<8, Weights>(scores, value_scales, pairs, tile_weights(), states);
    } else {
      softmax_tile<16, Weights>(scores, value_scales, pairs, tile_weights(), states);
    }
  }

  // The same where queries do not see all keys, and maybe none.
  FDSPEC_INLINE void weigh_masked(float* scores, int width, I16 visible, const float* value_scales,
                                  States states) const {
    mask_scores(scores, visible);
    weigh(scores, width, value_scales, states);
    select(visible > I16::zero(), F16::load(states.l), F16::zero()).store(states.l);
  }

  // o of a tile of queries from their weights.
  FDSPEC_INLINE void multiply_values(int num_keys, States states) const {
    const uint16_t* values = halves(step_.scratch.values);
    const int num_tiles = padded_dim_ / kLanes;
    for (int tile = 0; tile < num_tiles; tile += 4) {
      if (num_tiles - tile >= 4) {
        multiply_columns<4>(values + tile * kBlock, num_keys, states.o + tile * kLanes);
      } else {
        multiply_columns<2>(values + tile * kBlock, num_keys, states.o + tile * kLanes);
      }
    }
  }

  template <int kTiles>
  FDSPEC_INLINE void multiply_columns(const uint16_t* values, int num_keys, float* o) const {
    zero_tile<0>();
    zero_tile<1>();
    if constexpr (kTiles == 4) {
      zero_tile<2>();
      zero_tile<3>();
    }
    // Of a row of values, and of o.
    const int64_t stride = padded_dim_ * static_cast<int>(sizeof(float));
    const uint16_t* weights = tile_weights();
    for (int key = 0; key < num_keys; key += kBlock) {
      load_tile<4>(weights + key, kPartKeys * sizeof(uint16_t));
      load_tile<5>(values, stride);
      multiply_bf16<0, 4, 5>();
      load_tile<6>(values + kBlock, stride);
      multiply_bf16<1, 4, 6>();
      if constexpr (kTiles == 4) {
        load_tile<7>(values + 2 * kBlock, stride);
        multiply_bf16<2, 4, 7>();
        load_tile<5>(values + 3 * kBlock, stride);
        multiply_bf16<3, 4, 5>();
      }
      values += kBlock * padded_dim_;
    }
    store_tile<0>(o, stride);
    store_tile<1>(o + kLanes, stride);
    if constexpr (kTiles == 4) {
      store_tile<2>(o + 2 * kLanes, stride);
      store_tile<3>(o + 3 * kLanes, stride);
    }
  }

  uint16_t* halves(int64_t offset) const { return reinterpret_cast<uint16_t*>(step_.mine(offset)); }
  int32_t* row_numbers() const {
    return reinterpret_cast<int32_t*>(step_.mine(step_.scratch.query_rows));
  }
  uint16_t* query_tiles(int query) const {
    return halves(step_.scratch.queries) + query * padded_dim_;
  }
  // [16 queries][kPartKeys]; the pairs of keys that they are made of lie before them.
  uint16_t* tile_weights() const {
    return halves(step_.scratch.weights) + kPartKeys * kTileQueries;
  }

  const SliceStep& step_;
  const int padded_dim_;
  const TileScope scope_;
};

}  // namespace

void cascade_append_attention(const AttentionArgs& args, Slice slice) {
  switch (args.cache.type) {
    case CacheType::kFloat32:
      return avx512::cascade_append_attention(args, slice);
    case CacheType::kBFloat16:
      return Worker<TilePart<BFloat16Weights>>(args, slice).run();
    case CacheType::kInt8:
      return Worker<TilePart<Int8Weights>>(args, slice).run();
  }
}

}  // namespace amx
}  // namespace fdspec
