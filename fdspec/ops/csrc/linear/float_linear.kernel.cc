// SPDX-License-Identifier: Apache-2.0
// Products in float. With few rows, weights are widened to fp32 in registers and multiplied at
// once. With many, a chunk of inputs of a few panels at a time is widened in memory (first-level
// cache), and every row passes over the chunk. Sums wait in memory in between.
#include <utility>

#include "common/vec.h"
#include "linear/epilogue.h"
#include "linear/linear.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

static_assert(kFloatPanels <= kMaxFloatPanels);

// The most rows that weights are widened in registers for.
constexpr int kPackedRows = FDSPEC_ISA_ID == 2 ? 4 : 1;

// How far ahead of their use packed weights are fetched into the second-level cache, and then into
// the first, in each panel.
constexpr int kFarPrefetchBytes = 8192;
constexpr int kNearPrefetchBytes = 1024;

// Inputs of a chunk: a multiple of the block of 32.
constexpr int kChunkInputs = 64;
constexpr int kChunkFloats = kChunkInputs * kLanes;

// Widens inputs [begin, begin + count) of a panel to out[count][16].
using Widen = void (*)(const PackedLayout& layout, const uint8_t* panel, int64_t begin, int count,
                       float* out);

void widen_bf16(const PackedLayout&, const uint8_t* panel, int64_t begin, int count, float* out) {
  const uint16_t* weights = reinterpret_cast<const uint16_t*>(panel) + begin * kLanes;
  for (int k = 0; k < count; ++k) {
    F16::load_bf16(weights + k * kLanes).store(out + k * kLanes);
  }
}

// The scale and minimum of a group. The product of scale and code is exact, so one fma rounds like
// the definition, scale * (code - zero_point) [+ minimum].
struct GroupScale {
  F16 scale = F16::zero(), minimum = F16::zero();

  FDSPEC_INLINE void load(const PackedLayout& layout, const uint8_t* panel, int64_t group) {
    const uint16_t* head = reinterpret_cast<const uint16_t*>(panel + layout.codes_bytes() +
                                                             group * layout.group_bytes());
    scale = F16::load_fp16(head);
    if (layout.has_minimum) minimum = F16::load_fp16(head + kLanes);
  }
  FDSPEC_INLINE F16 widen(F16 code) const { return fma(code, scale, minimum); }
};

// The floats of codes, less their zero point. kInput: of the 32 / kBits inputs of a vector.
template <int kBits>
struct Codes;

template <>
struct Codes<4> {
  NibbleFloats nibbles;

  explicit FDSPEC_INLINE Codes(const PackedLayout& layout) : nibbles(layout.zero_point()) {}
  static FDSPEC_INLINE I16 load(const uint8_t* vector) { return I16::load(vector); }
  template <int kInput>
  FDSPEC_INLINE F16 input(I16 vector) const {
    return nibbles(shift_right<kInput % 4 * 8 + kInput / 4 * 4>(vector));
  }
};

template <>
struct Codes<8> {
  explicit FDSPEC_INLINE Codes(const PackedLayout&) {}
  // Bytes less their zero point, 128.
  static FDSPEC_INLINE I16 load(const uint8_t* vector) {
    return I16::load(vector) ^ I16::broadcast(static_cast<int32_t>(0x80808080u));
  }
  template <int kInput>
  FDSPEC_INLINE F16 input(I16 vector) const {
    return shift_right_signed<24>(shift_left<24 - 8 * kInput>(vector)).to_float();
  }
};

// One block of 32 inputs.
template <int kBits, int... kInput>
FDSPEC_INLINE void widen_block(const Codes<kBits>& codes, const uint8_t* packed,
                               const GroupScale& group, float* out,
                               std::integer_sequence<int, kInput...>) {
  for (int j = 0; j < kBits; ++j) {
    const I16 vector = codes.load(packed + 64 * j);
    (group.widen(codes.template input<kInput>(vector))
         .store(out + (32 / kBits * j + kInput) * kLanes),
     ...);
  }
}

// Whole blocks, so up to 31 inputs past `count` are written; `begin` is a multiple of 32.
template <int kBits>
void widen_integers(const PackedLayout& layout, const uint8_t* panel, int64_t begin, int count,
                    float* out) {
  const Codes<kBits> codes(layout);
  GroupScale group;
  for (int k = 0; k < count; k += kBlockInputs) {
    const int64_t block = (begin + k) / kBlockInputs;
    group.load(layout, panel, block / layout.group_blocks());
    widen_block<kBits>(codes, panel + block * layout.block_bytes(), group, out + k * kLanes,
                       std::make_integer_sequence<int, 32 / kBits>());
  }
}

// Sums of kRows rows and kPanels panels; in memory, [kRows][kMaxFloatPanels][16].
template <int kRows, int kPanels>
struct Sums {
  F16 v[kRows][kPanels];

  explicit FDSPEC_INLINE Sums(const float* memory) {
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kPanels; ++i) {
        v[row][i] = F16::load(memory + (row * kMaxFloatPanels + i) * kLanes);
      }
    }
  }
  FDSPEC_INLINE void store(float* memory) const {
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kPanels; ++i) {
        v[row][i].store(memory + (row * kMaxFloatPanels + i) * kLanes);
      }
    }
  }
  // Adds one input. x: of the first row; the others follow at x_stride.
  FDSPEC_INLINE void add(const float* x, int64_t x_stride, const F16 (&weights)[kPanels]) {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const F16 value = F16::broadcast(x[row * x_stride]);
#pragma GCC unroll 4
      for (int i = 0; i < kPanels; ++i) v[row][i] = fma(value, weights[i], v[row][i]);
    }
  }
};

// Continues sums over one chunk, input by input.
// x: rows of stride x_stride; weights[panel] is [count][16].
template <int kRows, int kPanels>
void multiply(const float* x, int64_t x_stride, const float* const* weights, int count,
              float* sums) {
  Sums<kRows, kPanels> total(sums);
  for (int k = 0; k < count; ++k) {
    F16 values[kPanels];
    for (int i = 0; i < kPanels; ++i) values[i] = F16::load(weights[i] + k * kLanes);
    total.add(x + k, x_stride, values);
  }
  total.store(sums);
}

using Multiply = void (*)(const float* x, int64_t x_stride, const float* const* weights, int count,
                          float* sums);

// Functions for 1, 2, ..., kFloatRows rows.
struct RowsTable {
  Multiply of_count[kFloatRows];
};

template <int kPanels, int... kRow>
FDSPEC_INLINE RowsTable make_table(std::integer_sequence<int, kRow...>) {
  return {{multiply<kRow + 1, kPanels>...}};
}

// Panels that are read side by side.
template <int kPanels>
struct PanelGroup {
  const uint8_t* data[kPanels];

  FDSPEC_INLINE void prefetch_block(int64_t offset, int64_t bytes) const {
    for (const uint8_t* panel : data) {
      for (int64_t i = offset; i < offset + bytes; i += 64) {
        __builtin_prefetch(panel + kFarPrefetchBytes + i, 0, 2);
        prefetch(panel + kNearPrefetchBytes + i);
      }
    }
  }
};

// One block of 32 inputs of bfloat16; x: of its first input.
template <int kRows, int kPanels>
FDSPEC_INLINE void add_bf16(const PanelGroup<kPanels>& panels, int64_t offset, const float* x,
                            int64_t x_stride, Sums<kRows, kPanels>* sums) {
#pragma GCC unroll 4
  for (int k = 0; k < kBlockInputs; ++k) {
    F16 weights[kPanels];
    for (int i = 0; i < kPanels; ++i) {
      weights[i] =
          F16::load_bf16(reinterpret_cast<const uint16_t*>(panels.data[i] + offset) + k * kLanes);
    }
    sums->add(x + k, x_stride, weights);
  }
}

// One block of 32 inputs of integer weights.
template <int kBits, int kRows, int kPanels, int... kInput>
FDSPEC_INLINE void add_codes(const Codes<kBits>& codes, const PanelGroup<kPanels>& panels,
                             int64_t offset, const GroupScale (&groups)[kPanels], const float* x,
                             int64_t x_stride, Sums<kRows, kPanels>* sums,
                             std::integer_sequence<int, kInput...>) {
  for (int j = 0; j < kBits; ++j) {
    I16 vectors[kPanels];
    for (int i = 0; i < kPanels; ++i) vectors[i] = codes.load(panels.data[i] + offset + 64 * j);
    const auto add_input = [&](auto input) __attribute__((always_inline)) {
      F16 weights[kPanels];
      for (int i = 0; i < kPanels; ++i) {
        weights[i] = groups[i].widen(codes.template input<decltype(input)::value>(vectors[i]));
      }
      sums->add(x + 32 / kBits * j + decltype(input)::value, x_stride, weights);
    };
    (add_input(std::integral_constant<int, kInput>()), ...);
  }
}

// Continues sums over the first num_blocks blocks of 32 inputs.
template <int kBits, int kRows, int kPanels>
void multiply_packed(const PackedLayout& layout, const uint8_t* const* panels, int64_t num_blocks,
                     const float* x, int64_t x_stride, float* sums) {
  constexpr int64_t kBytes = kBlockInputs * kLanes * kBits / 8;
  PanelGroup<kPanels> group;
  for (int i = 0; i < kPanels; ++i) group.data[i] = panels[i];
  Sums<kRows, kPanels> total(sums);
  GroupScale scales[kPanels];
  for (int64_t block = 0; block < num_blocks; ++block, x += kBlockInputs) {
    group.prefetch_block(block * kBytes, kBytes);
    if constexpr (kBits == 16) {
      add_bf16(group, block * kBytes, x, x_stride, &total);
    } else {
      if (block % layout.group_blocks() == 0) {
        for (int i = 0; i < kPanels; ++i) {
          scales[i].load(layout, panels[i], block / layout.group_blocks());
        }
      }
      add_codes(Codes<kBits>(layout), group, block * kBytes, scales, x, x_stride, &total,
                std::make_integer_sequence<int, 32 / kBits>());
    }
  }
  total.store(sums);
}

using MultiplyPacked = void (*)(const PackedLayout& layout, const uint8_t* const* panels,
                                int64_t num_blocks, const float* x, int64_t x_stride, float* sums);

// Functions for 1, 2, ..., kPackedRows rows.
struct PackedTable {
  MultiplyPacked of_count[kPackedRows];
};

template <int kBits, int kPanels, int... kRow>
FDSPEC_INLINE PackedTable make_packed_table(std::integer_sequence<int, kRow...>) {
  return {{multiply_packed<kBits, kRow + 1, kPanels>...}};
}

// None for fp32, which needs no widening.
template <int kPanels>
FDSPEC_INLINE PackedTable packed_table_for(const PackedLayout& layout) {
  constexpr auto kCounts = std::make_integer_sequence<int, kPackedRows>();
  switch (layout.bits) {
    case 4:
      return make_packed_table<4, kPanels>(kCounts);
    case 8:
      return make_packed_table<8, kPanels>(kCounts);
    case 16:
      return make_packed_table<16, kPanels>(kCounts);
    default:
      return {};
  }
}

FDSPEC_INLINE Widen widen_for(const PackedLayout& layout) {
  switch (layout.bits) {
    case 4:
      return widen_integers<4>;
    case 8:
      return widen_integers<8>;
    case 16:
      return widen_bf16;
    default:
      return nullptr;  // fp32 is read where it lies
  }
}

// The functions for a format and a number of panels side by side.
struct Functions {
  int num_panels;
  PackedTable packed;
  Widen widen;
  RowsTable rows;
};

template <int kPanels>
FDSPEC_INLINE Functions functions_for(const PackedLayout& layout) {
  return {kPanels, packed_table_for<kPanels>(layout), widen_for(layout),
          make_table<kPanels>(std::make_integer_sequence<int, kFloatRows>())};
}

// Continues the sums of all rows over inputs [begin, in_features), a chunk at a time.
void add_in_chunks(const LinearArgs& args, const Functions& functions, const uint8_t* const* panels,
                   int64_t begin, float* sums) {
  alignas(64) float chunk[kFloatPanels][kChunkFloats];
  const int64_t in = args.layout.in_features;
  for (int64_t k = begin; k < in; k += kChunkInputs) {
    const int count = static_cast<int>(min_of<int64_t>(kChunkInputs, in - k));
    const float* weights[kFloatPanels] = {};
    for (int i = 0; i < functions.num_panels; ++i) {
      weights[i] = chunk[i];
      if (functions.widen == nullptr) {
        weights[i] = reinterpret_cast<const float*>(panels[i]) + k * kLanes;
      } else {
        functions.widen(args.layout, panels[i], k, count, chunk[i]);
      }
    }
    for (int64_t row = 0; row < args.rows; row += kFloatRows) {
      const int64_t rows = min_of<int64_t>(kFloatRows, args.rows - row);
      functions.rows.of_count[rows - 1](args.x + row * in + k, in, weights, count,
                                        sums + row * kMaxFloatPanels * kLanes);
    }
  }
}

// The product of all rows with functions.num_panels panels from `first` on.
void panels_times_rows(const LinearArgs& args, const Functions& functions, int64_t first,
                       float* sums) {
  const PackedLayout& layout = args.layout;
  const uint8_t* panels[kFloatPanels] = {};
  for (int i = 0; i < functions.num_panels; ++i) {
    panels[i] = args.weight + (first + i) * layout.panel_bytes();
  }
  std::memset(sums, 0, static_cast<uint64_t>(args.rows) * kMaxFloatPanels * kLanes * sizeof(float));
  int64_t num_blocks = 0;
  if (args.rows > 0 && args.rows <= kPackedRows && functions.widen != nullptr) {
    num_blocks = layout.in_features / kBlockInputs;
    functions.packed.of_count[args.rows - 1](layout, panels, num_blocks, args.x, layout.in_features,
                                             sums);
  }
  add_in_chunks(args, functions, panels, num_blocks * kBlockInputs, sums);
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int i = 0; i < functions.num_panels; ++i) {
      finish(args, row, first + i, F16::load(sums + (row * kMaxFloatPanels + i) * kLanes));
    }
  }
}

}  // namespace

void float_linear(const FloatLinearArgs& args, Slice slice) {
  const PackedLayout& layout = args.linear.layout;
  const Functions several = functions_for<kFloatPanels>(layout);
  const Functions one = functions_for<1>(layout);
  float* sums = args.sums + slice.index * args.sums_per_slice;
  const Range panels = slice.share(layout.num_panels(), kFloatPanels);
  int64_t panel = panels.begin;
  for (; panel + kFloatPanels <= panels.end; panel += kFloatPanels) {
    panels_times_rows(args.linear, several, panel, sums);
  }
  for (; panel < panels.end; ++panel) panels_times_rows(args.linear, one, panel, sums);
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
