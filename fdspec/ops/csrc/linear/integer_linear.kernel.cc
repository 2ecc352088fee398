// SPDX-License-Identifier: Apache-2.0
// Integer dot products of panels with rows of quantised activations. A few rows share the load of
// one panel's codes, kIntegerRows at most. With many rows, activations are shared too: kManyRows
// rows and kManyRowsPanels panels are multiplied together, and nibbles are taken apart beforehand.
#include <utility>

#include "common/vec.h"
#include "linear/epilogue.h"
#include "linear/linear.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

static_assert(kTileRows % kIntegerRows == 0 && kTileRows % kManyRows == 0);

// From here on rows are many: before, fetching weights while multiplying outweighs sharing.
constexpr int64_t kMinManyRows = 48;

// How far ahead of their use codes are fetched into the second-level cache, and then into the
// first.
constexpr int kFarPrefetchBytes = 32768;
constexpr int kNearPrefetchBytes = 2048;

// Activations that stay in the second-level cache while the panels of a slice pass by.
constexpr int64_t kCachedActivationBytes = 512 * 1024;

// The most blocks of a panel that nibbles are taken apart of: what the second-level cache likes.
constexpr int kMaxWideBlocks = 128;

// A panel: its index in the matrix, where its codes are, as they are packed or taken apart, and its
// scales.
struct Panel {
  int64_t index;
  const uint8_t* codes;
  const uint8_t* head;
};

// Dot products of kPanels panels with kRows rows.
template <class Dot, int kPanels, int kRows>
struct Dots {
  Dot v[kPanels][kRows];
};

// How the codes of a block lie in memory, and how they are multiplied. x: [kRows][kBlockInputs].
struct PackedNibbles {
  using Dot = NibbleDot;
  static constexpr int kBlockBytes = 256;
  static constexpr bool kPrefetches = true;

  template <int kPanels, int kRows>
  static FDSPEC_INLINE void add(const Panel (&panels)[kPanels], const int8_t (*x)[kBlockInputs],
                                Dots<Dot, kPanels, kRows>* dots) {
    static_assert(kPanels == 1);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const U8x64 both = U8x64::load(panels[0].codes + 64 * j);
      const U8x64 low = both.low_nibbles(), high = both.high_nibbles();
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        dots->v[0][row].add(low, read_as<int32_t>(x[row] + 8 * j));
        dots->v[0][row].add(high, read_as<int32_t>(x[row] + 8 * j + 4));
      }
    }
  }
};

// A byte for each code.
template <class DotType, bool kPrefetch>
struct Bytes {
  using Dot = DotType;
  static constexpr int kBlockBytes = 512;
  static constexpr bool kPrefetches = kPrefetch;

  template <int kPanels, int kRows>
  static FDSPEC_INLINE void add(const Panel (&panels)[kPanels], const int8_t (*x)[kBlockInputs],
                                Dots<Dot, kPanels, kRows>* dots) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      U8x64 weights[kPanels];
      for (int i = 0; i < kPanels; ++i) weights[i] = U8x64::load(panels[i].codes + 64 * j);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const int32_t four = read_as<int32_t>(x[row] + 4 * j);
#pragma GCC unroll 2
        for (int i = 0; i < kPanels; ++i) dots->v[i][row].add(weights[i], four);
      }
    }
  }
};
using PackedBytes = Bytes<ByteDot, true>;
using CachedBytes = Bytes<ByteDot, false>;
// Nibbles that have been taken apart.
using WideNibbles = Bytes<NibbleDot, false>;

template <class Format>
FDSPEC_INLINE void prefetch_codes(const uint8_t* codes) {
  if (!Format::kPrefetches) return;
  for (int offset = 0; offset < Format::kBlockBytes; offset += 64) {
    __builtin_prefetch(codes + kFarPrefetchBytes + offset, 0, 2);
    prefetch(codes + kNearPrefetchBytes + offset);
  }
}

// The next 16 of a panel's fp16 numbers.
FDSPEC_INLINE F16 next_halves(Panel* panel) {
  const F16 values = F16::load_fp16(reinterpret_cast<const uint16_t*>(panel->head));
  panel->head += sizeof(uint16_t) * kLanes;
  return values;
}

// Dot products of one block of some panels with rows [first, first + kRows) of a tile, scaled.
// Moves the panels to their next block.
template <int kPanels, int kRows, class Format>
FDSPEC_INLINE void multiply_block(Panel (&panels)[kPanels], const QuantizedBlock& block, int first,
                                  F16 (&products)[kPanels][kRows]) {
  Dots<typename Format::Dot, kPanels, kRows> dots;
  for (auto& panel_dots : dots.v) {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      panel_dots[row] = typename Format::Dot(block.start[first + row]);
    }
  }
  for (const Panel& panel : panels) prefetch_codes<Format>(panel.codes);
  Format::add(panels, block.codes + first, &dots);
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    const F16 scale = F16::broadcast(block.scale[first + row]);
    const F16 offset = F16::broadcast(block.offset[first + row]);
#pragma GCC unroll 2
    for (int i = 0; i < kPanels; ++i) {
      products[i][row] = fma(dots.v[i][row].sum().as_float_bits(), scale, offset);
    }
  }
  for (Panel& panel : panels) panel.codes += Format::kBlockBytes;
}

// The same for the blocks [block, end) of a group.
template <int kPanels, int kRows, class Format>
FDSPEC_INLINE void multiply_group(Panel (&panels)[kPanels], const QuantizedBlock* block,
                                  const QuantizedBlock* end, int first,
                                  F16 (&products)[kPanels][kRows]) {
  multiply_block<kPanels, kRows, Format>(panels, *block, first, products);
  while (++block < end) {
    F16 more[kPanels][kRows];
    multiply_block<kPanels, kRows, Format>(panels, *block, first, more);
    for (int i = 0; i < kPanels; ++i) {
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) products[i][row] = products[i][row] + more[i][row];
    }
  }
}

// The products of panels with rows [first, first + kRows) of a tile.
// kGroupIsBlock: groups of 32, known to the compiler.
template <int kPanels, int kRows, class Format, bool kHasMinimum, bool kGroupIsBlock>
FDSPEC_INLINE void multiply(const PackedLayout& layout, Panel (&panels)[kPanels],
                            const QuantizedBlock* block, int first, F16 (&sums)[kPanels][kRows]) {
  const QuantizedBlock* const last = block + layout.num_blocks();
  for (auto& panel_sums : sums) {
    for (F16& sum : panel_sums) sum = F16::zero();
  }
  while (block < last) {
    const int64_t group_blocks = kGroupIsBlock ? 1 : min_of(layout.group_blocks(), last - block);
    F16 products[kPanels][kRows];
    multiply_group<kPanels, kRows, Format>(panels, block, block + group_blocks, first, products);
    block += group_blocks;
#pragma GCC unroll 2
    for (int i = 0; i < kPanels; ++i) {
      const F16 scale = next_halves(&panels[i]);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        sums[i][row] = fma(products[i][row], scale, sums[i][row]);
      }
      if (!kHasMinimum) continue;
      const F16 minimum = next_halves(&panels[i]);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const F16 group_sum = F16::broadcast(block[-1].group_sum[first + row]);
        sums[i][row] = fma(minimum, group_sum, sums[i][row]);
      }
    }
  }
}

// The products of panels[0, kPanels) with rows [row, row + kRows), which are in one tile.
template <int kPanels, int kRows, class Format, bool kHasMinimum, bool kGroupIsBlock>
void rows_of_panels(const IntegerLinearArgs& args, const Panel* all_panels, int64_t row) {
  const PackedLayout& layout = args.linear.layout;
  const QuantizedBlock* blocks = args.x + row / kTileRows * layout.num_blocks();
  const int first = kRows == kTileRows ? 0 : static_cast<int>(row % kTileRows);
  Panel panels[kPanels];
  for (int i = 0; i < kPanels; ++i) panels[i] = all_panels[i];
  F16 sums[kPanels][kRows];
  multiply<kPanels, kRows, Format, kHasMinimum, kGroupIsBlock>(layout, panels, blocks, first, sums);
  for (int i = 0; i < kRows; ++i) {
    for (int p = 0; p < kPanels; ++p) finish(args.linear, row + i, panels[p].index, sums[p][i]);
  }
}

using RowsOfPanels = void (*)(const IntegerLinearArgs& args, const Panel* panels, int64_t row);

// Functions for one packed panel and 1, 2, ..., kIntegerRows rows, and for kManyRows rows and
// kManyRowsPanels panels with a byte for each code: the first such rows, and those after them,
// which find the codes in a cache.
struct RowsTable {
  RowsOfPanels of_count[kIntegerRows];
  RowsOfPanels of_first_many, of_many;
};

template <class Packed, class First, class Cached, bool kHasMinimum, bool kGroupIsBlock,
          int... kRow>
FDSPEC_INLINE RowsTable make_table(std::integer_sequence<int, kRow...>) {
  return {{rows_of_panels<1, kRow + 1, Packed, kHasMinimum, kGroupIsBlock>...},
          rows_of_panels<kManyRowsPanels, kManyRows, First, kHasMinimum, kGroupIsBlock>,
          rows_of_panels<kManyRowsPanels, kManyRows, Cached, kHasMinimum, kGroupIsBlock>};
}

template <bool kGroupIsBlock>
FDSPEC_INLINE RowsTable table_for_groups(const PackedLayout& layout) {
  constexpr auto kCounts = std::make_integer_sequence<int, kIntegerRows>();
  if (layout.bits == 8) {
    return make_table<PackedBytes, PackedBytes, CachedBytes, false, kGroupIsBlock>(kCounts);
  }
  return layout.has_minimum
             ? make_table<PackedNibbles, WideNibbles, WideNibbles, true, kGroupIsBlock>(kCounts)
             : make_table<PackedNibbles, WideNibbles, WideNibbles, false, kGroupIsBlock>(kCounts);
}

FDSPEC_INLINE RowsTable table_for(const PackedLayout& layout) {
  return layout.group_blocks() == 1 ? table_for_groups<true>(layout)
                                    : table_for_groups<false>(layout);
}

// Takes the nibbles of num_blocks blocks apart.
FDSPEC_INLINE void widen_nibbles(const uint8_t* codes, int64_t num_blocks, uint8_t* out) {
  for (int64_t block = 0; block < num_blocks; ++block) {
    prefetch_codes<PackedNibbles>(codes);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const U8x64 both = U8x64::load(codes + 64 * j);
      both.low_nibbles().store(out + 128 * j);
      both.high_nibbles().store(out + 128 * j + 64);
    }
    codes += PackedNibbles::kBlockBytes;
    out += WideNibbles::kBlockBytes;
  }
}

FDSPEC_INLINE Panel packed_panel(const IntegerLinearArgs& args, int64_t index) {
  const PackedLayout& layout = args.linear.layout;
  const uint8_t* codes = args.linear.weight + index * layout.panel_bytes();
  return {index, codes, codes + layout.codes_bytes()};
}

// Memory for the codes of panels whose nibbles have been taken apart.
struct alignas(64) WideCodes {
  uint8_t of_panel[kManyRowsPanels][kMaxWideBlocks * WideNibbles::kBlockBytes];
};

// The product of a panel with rows [begin, end), a few at a time.
FDSPEC_INLINE void panel_times_rows(const IntegerLinearArgs& args, const RowsTable& table,
                                    int64_t index, Range rows) {
  const Panel panel = packed_panel(args, index);
  for (int64_t row = rows.begin; row < rows.end; row += kIntegerRows) {
    const int64_t count = min_of<int64_t>(kIntegerRows, rows.end - row);
    table.of_count[count - 1](args, &panel, row);
  }
}

// The product of kManyRowsPanels panels from `index` on with rows [begin, end), which are many.
FDSPEC_INLINE void panels_times_many_rows(const IntegerLinearArgs& args, const RowsTable& table,
                                          int64_t index, Range rows, WideCodes* wide) {
  const PackedLayout& layout = args.linear.layout;
  Panel panels[kManyRowsPanels];
  for (int i = 0; i < kManyRowsPanels; ++i) {
    panels[i] = packed_panel(args, index + i);
    if (layout.bits == 8) continue;
    widen_nibbles(panels[i].codes, layout.num_blocks(), wide->of_panel[i]);
    panels[i].codes = wide->of_panel[i];
  }
  int64_t row = rows.begin;
  table.of_first_many(args, panels, row);
  for (row += kManyRows; row + kManyRows <= rows.end; row += kManyRows) {
    table.of_many(args, panels, row);
  }
  for (int i = 0; i < kManyRowsPanels; ++i) {
    panel_times_rows(args, table, index + i, {row, rows.end});
  }
}

}  // namespace

void integer_linear(const IntegerLinearArgs& args, Slice slice) {
  const PackedLayout& layout = args.linear.layout;
  const RowsTable table = table_for(layout);
  const Range panels = slice.share(layout.num_panels());
  const int64_t tile_bytes = layout.num_blocks() * static_cast<int64_t>(sizeof(QuantizedBlock));
  const int64_t pass_rows =
      max_of<int64_t>(kCachedActivationBytes / max_of<int64_t>(tile_bytes, 1), 1) * kTileRows;
  WideCodes wide;
  for (int64_t pass = 0; pass < args.linear.rows; pass += pass_rows) {
    const Range rows{pass, min_of(pass + pass_rows, args.linear.rows)};
    int64_t panel = panels.begin;
    if (rows.end - rows.begin >= kMinManyRows && layout.num_blocks() <= kMaxWideBlocks) {
      for (; panel + kManyRowsPanels <= panels.end; panel += kManyRowsPanels) {
        panels_times_many_rows(args, table, panel, rows, &wide);
      }
    }
    for (; panel < panels.end; ++panel) panel_times_rows(args, table, panel, rows);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
