// SPDX-License-Identifier: Apache-2.0
// Integer dot products of a panel with up to kIntegerRows rows of quantised activations.
#include <utility>

#include "common/vec.h"
#include "linear/epilogue.h"
#include "linear/linear.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

static_assert(kTileRows % kIntegerRows == 0);

// How far ahead of their use codes are fetched: about the latency of memory at its full rate.
constexpr int kPrefetchBytes = 6144;

// Activations that stay in the second-level cache while the panels of a slice pass by.
constexpr int64_t kCachedActivationBytes = 512 * 1024;

template <int kBits>
struct Codes;

template <>
struct Codes<4> {
  using Dot = NibbleDot;
  static constexpr int kBlockBytes = 256;

  template <int kRows>
  static FDSPEC_INLINE void add(const uint8_t* codes, const int8_t (*x)[kBlockInputs],
                                Dot (&dots)[kRows]) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const U8x64 both = U8x64::load(codes + 64 * j);
      const U8x64 low = both.low_nibbles(), high = both.high_nibbles();
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        dots[row].add(low, read_as<int32_t>(x[row] + 8 * j));
        dots[row].add(high, read_as<int32_t>(x[row] + 8 * j + 4));
      }
    }
  }
};

template <>
struct Codes<8> {
  using Dot = ByteDot;
  static constexpr int kBlockBytes = 512;

  template <int kRows>
  static FDSPEC_INLINE void add(const uint8_t* codes, const int8_t (*x)[kBlockInputs],
                                Dot (&dots)[kRows]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const U8x64 weights = U8x64::load(codes + 64 * j);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        dots[row].add(weights, read_as<int32_t>(x[row] + 4 * j));
      }
    }
  }
};

// An array of kRows dots with the corrections of a block's rows from `first` on.
template <class Dot, int kRows>
struct Dots {
  Dot v[kRows];

  template <int... kRow>
  FDSPEC_INLINE Dots(const int32_t* corrections, std::integer_sequence<int, kRow...>)
      : v{Dot(corrections[kRow])...} {}
  explicit FDSPEC_INLINE Dots(const int32_t* corrections)
      : Dots(corrections, std::make_integer_sequence<int, kRows>()) {}
};

// Dot products of one block of a panel with rows [first, first + kRows) of a tile, scaled.
// A group's first block starts `products`, the others add to it.
template <int kRows, int kBits>
FDSPEC_INLINE void multiply_block(const uint8_t* codes, const QuantizedBlock& block, int first,
                                  bool starts, F16 (&products)[kRows]) {
  using Format = Codes<kBits>;
  Dots<typename Format::Dot, kRows> dots(block.correction + first);
  for (int offset = 0; offset < Format::kBlockBytes; offset += 64) {
    prefetch(codes + kPrefetchBytes + offset);
  }
  Format::template add<kRows>(codes, block.codes + first, dots.v);
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    const F16 scale = F16::broadcast(block.scale[first + row]);
    const F16 dot = dots.v[row].sum().to_float();
    products[row] = starts ? dot * scale : fma(dot, scale, products[row]);
  }
}

// The product of one panel with rows [first, first + kRows) of a tile.
// kGroupIsBlock: groups of 32, known to the compiler.
template <int kRows, int kBits, bool kHasMinimum, bool kGroupIsBlock>
FDSPEC_INLINE void multiply(const PackedLayout& layout, const uint8_t* panel,
                            const QuantizedBlock* block, int first, F16 (&sums)[kRows]) {
  constexpr int kBlockBytes = Codes<kBits>::kBlockBytes;
  const uint8_t* head = panel + layout.codes_bytes();
  const QuantizedBlock* const last = block + layout.num_blocks();
  const int64_t group_blocks = layout.group_blocks();
  for (int row = 0; row < kRows; ++row) sums[row] = F16::zero();
  while (block != last) {
    F16 products[kRows];
    multiply_block<kRows, kBits>(panel, *block, first, true, products);
    panel += kBlockBytes;
    if (!kGroupIsBlock) {
      const QuantizedBlock* const end = last - block > group_blocks ? block + group_blocks : last;
      for (; block + 1 != end; panel += kBlockBytes) {
        multiply_block<kRows, kBits>(panel, *++block, first, false, products);
      }
    }
    const F16 scale = F16::load_fp16(reinterpret_cast<const uint16_t*>(head));
    head += sizeof(uint16_t) * kLanes;
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) sums[row] = fma(products[row], scale, sums[row]);
    if (kHasMinimum) {
      const F16 minimum = F16::load_fp16(reinterpret_cast<const uint16_t*>(head));
      head += sizeof(uint16_t) * kLanes;
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        sums[row] = fma(minimum, F16::broadcast(block->group_sum[first + row]), sums[row]);
      }
    }
    ++block;
  }
}

template <int kRows, int kBits, bool kHasMinimum, bool kGroupIsBlock>
void rows_of_panel(const IntegerLinearArgs& args, int64_t panel, int64_t row) {
  const PackedLayout& layout = args.linear.layout;
  const QuantizedBlock* blocks = args.x + row / kTileRows * layout.num_blocks();
  const int first = kIntegerRows == kTileRows ? 0 : static_cast<int>(row % kTileRows);
  F16 sums[kRows];
  multiply<kRows, kBits, kHasMinimum, kGroupIsBlock>(
      layout, args.linear.weight + panel * layout.panel_bytes(), blocks, first, sums);
  for (int i = 0; i < kRows; ++i) finish(args.linear, row + i, panel, sums[i]);
}

using RowsOfPanel = void (*)(const IntegerLinearArgs& args, int64_t panel, int64_t row);

// Functions for 1, 2, ..., kIntegerRows rows.
struct RowsTable {
  RowsOfPanel of_count[kIntegerRows];
};

template <int kBits, bool kHasMinimum, bool kGroupIsBlock, int... kRow>
FDSPEC_INLINE RowsTable make_table(std::integer_sequence<int, kRow...>) {
  return {{rows_of_panel<kRow + 1, kBits, kHasMinimum, kGroupIsBlock>...}};
}

FDSPEC_INLINE RowsTable table_for(const PackedLayout& layout) {
  constexpr auto kCounts = std::make_integer_sequence<int, kIntegerRows>();
  const bool group_is_block = layout.group_blocks() == 1;
  if (layout.bits == 8) {
    return group_is_block ? make_table<8, false, true>(kCounts)
                          : make_table<8, false, false>(kCounts);
  }
  if (layout.has_minimum) {
    return group_is_block ? make_table<4, true, true>(kCounts)
                          : make_table<4, true, false>(kCounts);
  }
  return group_is_block ? make_table<4, false, true>(kCounts)
                        : make_table<4, false, false>(kCounts);
}

}  // namespace

void integer_linear(const IntegerLinearArgs& args, Slice slice) {
  const PackedLayout& layout = args.linear.layout;
  const RowsTable table = table_for(layout);
  const Range panels = slice.share(layout.num_panels());
  const int64_t tile_bytes = layout.num_blocks() * static_cast<int64_t>(sizeof(QuantizedBlock));
  const int64_t pass_rows =
      max_of<int64_t>(kCachedActivationBytes / max_of<int64_t>(tile_bytes, 1), 1) * kTileRows;
  for (int64_t pass = 0; pass < args.linear.rows; pass += pass_rows) {
    const int64_t end = min_of(pass + pass_rows, args.linear.rows);
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
      for (int64_t row = pass; row < end; row += kIntegerRows) {
        const int64_t count = min_of<int64_t>(kIntegerRows, end - row);
        table.of_count[count - 1](args, panel, row);
      }
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
