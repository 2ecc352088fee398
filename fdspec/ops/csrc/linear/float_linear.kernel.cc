// SPDX-License-Identifier: Apache-2.0
// Products in float: weights are widened to fp32, a chunk of inputs of a few panels at a time
// (first-level cache), and every row passes over the chunk. Sums wait in memory between chunks.
#include <utility>

#include "common/vec.h"
#include "linear/epilogue.h"
#include "linear/linear.h"

namespace fdspec {
namespace FDSPEC_ISA {
namespace {

static_assert(kFloatPanels <= kMaxFloatPanels);

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

// scale * (code - zero_point) [+ minimum]; the product is exact, so one fma rounds like the
// definition.
struct GroupScale {
  F16 scale, minimum;
  I16 zero_point;

  FDSPEC_INLINE void store(I16 codes, float* out) const {
    fma((codes - zero_point).to_float(), scale, minimum).store(out);
  }
};

template <int kByte>
FDSPEC_INLINE void widen_byte(I16 vector, const GroupScale& group, float* out) {
  group.store(shift_right<8 * kByte>(vector) & I16::broadcast(0xFF), out + kByte * kLanes);
}

template <int kByte>
FDSPEC_INLINE void widen_nibbles(I16 vector, const GroupScale& group, float* out) {
  const I16 mask = I16::broadcast(0x0F);
  group.store(shift_right<8 * kByte>(vector) & mask, out + kByte * kLanes);
  group.store(shift_right<8 * kByte + 4>(vector) & mask, out + (4 + kByte) * kLanes);
}

// One block of 32 inputs.
template <int kBits>
FDSPEC_INLINE void widen_block(const uint8_t* codes, const GroupScale& group, float* out) {
  constexpr int kInputsPerVector = 32 / kBits;
  for (int k = 0; k < kBlockInputs; k += kInputsPerVector) {
    const I16 vector = I16::load(codes + k * kBits / 8 * kPanelChannels);
    float* inputs = out + k * kLanes;
    if constexpr (kBits == 8) {
      widen_byte<0>(vector, group, inputs);
      widen_byte<1>(vector, group, inputs);
      widen_byte<2>(vector, group, inputs);
      widen_byte<3>(vector, group, inputs);
    } else {
      widen_nibbles<0>(vector, group, inputs);
      widen_nibbles<1>(vector, group, inputs);
      widen_nibbles<2>(vector, group, inputs);
      widen_nibbles<3>(vector, group, inputs);
    }
  }
}

// Whole blocks, so up to 31 inputs past `count` are written; `begin` is a multiple of 32.
template <int kBits>
void widen_integers(const PackedLayout& layout, const uint8_t* panel, int64_t begin, int count,
                    float* out) {
  GroupScale group{F16::zero(), F16::zero(), I16::broadcast(layout.zero_point())};
  for (int k = 0; k < count; k += kBlockInputs) {
    const int64_t block = (begin + k) / kBlockInputs;
    const uint16_t* head = reinterpret_cast<const uint16_t*>(
        panel + layout.codes_bytes() + block / layout.group_blocks() * layout.group_bytes());
    group.scale = F16::load_fp16(head);
    if (layout.has_minimum) group.minimum = F16::load_fp16(head + kLanes);
    widen_block<kBits>(panel + block * layout.block_bytes(), group, out + k * kLanes);
  }
}

// Continues the sums of kRows rows and kPanels panels over one chunk, input by input.
// x: rows of stride x_stride; weights[panel] is [count][16]; sums is [kRows][kMaxFloatPanels][16].
template <int kRows, int kPanels>
void multiply(const float* x, int64_t x_stride, const float* const* weights, int count,
              float* sums) {
  F16 sum[kRows][kPanels];
  for (int row = 0; row < kRows; ++row) {
    for (int panel = 0; panel < kPanels; ++panel) {
      sum[row][panel] = F16::load(sums + (row * kMaxFloatPanels + panel) * kLanes);
    }
  }
  for (int k = 0; k < count; ++k) {
    F16 weight[kPanels];
    for (int panel = 0; panel < kPanels; ++panel) {
      weight[panel] = F16::load(weights[panel] + k * kLanes);
    }
    for (int row = 0; row < kRows; ++row) {
      const F16 value = F16::broadcast(x[row * x_stride + k]);
      for (int panel = 0; panel < kPanels; ++panel) {
        sum[row][panel] = fma(value, weight[panel], sum[row][panel]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int panel = 0; panel < kPanels; ++panel) {
      sum[row][panel].store(sums + (row * kMaxFloatPanels + panel) * kLanes);
    }
  }
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

// The product of all rows with panels [first, first + num_panels), num_panels <= kFloatPanels.
void panels_times_rows(const LinearArgs& args, Widen widen, int64_t first, int num_panels,
                       float* sums) {
  constexpr auto kCounts = std::make_integer_sequence<int, kFloatRows>();
  const RowsTable table =
      num_panels == kFloatPanels ? make_table<kFloatPanels>(kCounts) : make_table<1>(kCounts);
  alignas(64) float chunk[kFloatPanels][kChunkFloats];
  const PackedLayout& layout = args.layout;
  const int64_t in = layout.in_features;
  std::memset(sums, 0, static_cast<uint64_t>(args.rows) * kMaxFloatPanels * kLanes * sizeof(float));
  for (int64_t k = 0; k < in; k += kChunkInputs) {
    const int count = static_cast<int>(min_of<int64_t>(kChunkInputs, in - k));
    const float* weights[kFloatPanels] = {};
    for (int i = 0; i < num_panels; ++i) {
      const uint8_t* panel = args.weight + (first + i) * layout.panel_bytes();
      weights[i] = chunk[i];
      if (widen == nullptr) {
        weights[i] = reinterpret_cast<const float*>(panel) + k * kLanes;
      } else {
        widen(layout, panel, k, count, chunk[i]);
      }
    }
    for (int64_t row = 0; row < args.rows; row += kFloatRows) {
      const int64_t rows = min_of<int64_t>(kFloatRows, args.rows - row);
      table.of_count[rows - 1](args.x + row * in + k, in, weights, count,
                               sums + row * kMaxFloatPanels * kLanes);
    }
  }
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int i = 0; i < num_panels; ++i) {
      finish(args, row, first + i, F16::load(sums + (row * kMaxFloatPanels + i) * kLanes));
    }
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

}  // namespace

void float_linear(const FloatLinearArgs& args, Slice slice) {
  const PackedLayout& layout = args.linear.layout;
  const Widen widen = widen_for(layout);
  float* sums = args.sums + slice.index * args.sums_per_slice;
  const Range panels = slice.share(layout.num_panels(), kFloatPanels);
  int64_t panel = panels.begin;
  for (; panel + kFloatPanels <= panels.end; panel += kFloatPanels) {
    panels_times_rows(args.linear, widen, panel, kFloatPanels, sums);
  }
  for (; panel < panels.end; ++panel) panels_times_rows(args.linear, widen, panel, 1, sums);
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
