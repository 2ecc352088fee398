// SPDX-License-Identifier: Apache-2.0
// How the weight of a linear layer lies in memory: panels of 16 output channels, one per SIMD
// lane, each read from front to back.
//
//   panel   = codes of all inputs | for each group: 16 scales (fp16) [| 16 minima (fp16)]
//   fp32    input by input: 16 floats                    (no scales)
//   bf16    input by input: 16 bfloat16                  (no scales)
//   wint8   by 4 inputs: 64 bytes, byte 4 * channel + i is weight + 128 of input i
//   wint4   by 8 inputs: 64 bytes, byte 4 * channel + i holds input i (low nibble) and
//           input 4 + i (high nibble)
//
// The weight of a code q is scale * (q - zero_point) [+ minimum], where zero_point is 128 for
// wint8, 8 for wint4 without minimum and 0 with it. Inputs are padded to a multiple of 32 (their
// activations are 0), channels to a multiple of 16 (their results are dropped), panels to
// 64 bytes. A group is group_size consecutive inputs, or all of them if group_size is 0; the last
// may be short.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace fdspec {

inline constexpr int kPanelChannels = 16;
// Inputs whose activations share a scale; weight groups are multiples of it.
inline constexpr int kBlockInputs = 32;

FDSPEC_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct PackedLayout {
  int bits;  // 32 (fp32), 16 (bf16), 8 or 4
  int group_size;
  bool has_minimum;
  int64_t in_features;
  int64_t out_features;

  FDSPEC_INLINE bool is_integer() const { return bits < 16; }
  FDSPEC_INLINE int zero_point() const { return bits == 8 ? 128 : has_minimum ? 0 : 8; }
  FDSPEC_INLINE int64_t num_panels() const { return ceil_div(out_features, kPanelChannels); }
  FDSPEC_INLINE int64_t num_blocks() const { return ceil_div(in_features, kBlockInputs); }
  // Blocks of a full group.
  FDSPEC_INLINE int64_t group_blocks() const {
    return group_size == 0 ? num_blocks() : group_size / kBlockInputs;
  }
  FDSPEC_INLINE int64_t num_groups() const {
    return is_integer() && in_features > 0 ? ceil_div(num_blocks(), group_blocks()) : 0;
  }
  FDSPEC_INLINE int64_t block_bytes() const { return kBlockInputs * kPanelChannels * bits / 8; }
  FDSPEC_INLINE int64_t codes_bytes() const {
    return is_integer() ? num_blocks() * block_bytes() : in_features * kPanelChannels * bits / 8;
  }
  FDSPEC_INLINE int64_t group_bytes() const { return kPanelChannels * (has_minimum ? 4 : 2); }
  FDSPEC_INLINE int64_t panel_bytes() const {
    return ceil_div(codes_bytes() + num_groups() * group_bytes(), 64) * 64;
  }
  FDSPEC_INLINE int64_t total_bytes() const { return num_panels() * panel_bytes(); }
};

// One row (output channel) outside its panel. Codes are 0..15 for wint4 and weight + 128 for
// wint8; unused for fp32 and bf16, whose values are in `values`.
struct WeightRow {
  uint8_t* codes;    // [in_features]
  uint16_t* scales;  // [num_groups] fp16
  uint16_t* minima;  // [num_groups] fp16, or null
};

// Chooses scales, minima and codes for one row of float weights: round to nearest.
void quantize_row(const PackedLayout& layout, const float* weight, const WeightRow& row);

// Writes and reads a row of an integer format. Padding is left as it is.
void pack_row(const PackedLayout& layout, const WeightRow& row, int64_t channel, uint8_t* packed);
void unpack_row(const PackedLayout& layout, const uint8_t* packed, int64_t channel,
                const WeightRow& row);

// Writes a row of fp32 or bf16 (rounded to nearest even).
void pack_float_row(const PackedLayout& layout, const float* weight, int64_t channel,
                    uint8_t* packed);

// Reads one row of any format as floats [in_features].
void dequantize_row(const PackedLayout& layout, const uint8_t* packed, int64_t channel,
                    float* weight);

// Whole matrices, over all threads. `codes` is [out, in]; `scales` and `minima` are
// [out, groups] floats that are exact in fp16. The packed bytes are fully written.
FDSPEC_EXPORT void quantize_matrix(const PackedLayout& layout, const float* weight,
                                   uint8_t* packed);
FDSPEC_EXPORT void pack_matrix(const PackedLayout& layout, const uint8_t* codes,
                               const float* scales, const float* minima, uint8_t* packed);
FDSPEC_EXPORT void unpack_matrix(const PackedLayout& layout, const uint8_t* packed, uint8_t* codes,
                                 float* scales, float* minima);
FDSPEC_EXPORT void dequantize_matrix(const PackedLayout& layout, const uint8_t* packed,
                                     float* weight);

struct EmbeddingArgs {
  PackedLayout layout;
  const uint8_t* weight;     // layout.total_bytes()
  const int32_t* token_ids;  // [rows], each in [0, out_features)
  int64_t rows;
  float* out;  // [rows, in_features]
};

// out[row] = row token_ids[row] of the weight.
FDSPEC_EXPORT void run_embedding(const EmbeddingArgs& args);

}  // namespace fdspec
