// SPDX-License-Identifier: Apache-2.0
#include "linear/packed_weight.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/parallel.h"
#include "linear/half.h"

namespace fdspec {
namespace {

constexpr int64_t kMinWeightsPerSlice = 16384;

uint8_t clamp_code(float value, int zero_point, int lowest, int highest) {
  return static_cast<uint8_t>(
      std::clamp(static_cast<int>(std::nearbyint(value)) + zero_point, lowest, highest));
}

// Address of the byte that holds input k of a channel.
int64_t code_offset(const PackedLayout& layout, int64_t k, int64_t lane) {
  const int64_t inputs_per_vector = layout.bits == 4 ? 8 : 4;
  return k / inputs_per_vector * 64 + lane * 4 + k % 4;
}

bool is_high_nibble(const PackedLayout& layout, int64_t k) {
  return layout.bits == 4 && k % 8 >= 4;
}

// Calls fn(channel) for every row; the 16 rows of a panel stay on one thread, so that its pages
// are first touched by the thread that will read them.
template <class Fn>
void for_each_row(const PackedLayout& layout, Fn fn) {
  const int slices = slices_for(layout.in_features * layout.out_features, kMinWeightsPerSlice);
  parallel(slices, [&](Slice slice) {
    const Range panels = slice.share(layout.num_panels());
    const int64_t end = std::min(panels.end * kPanelChannels, layout.out_features);
    for (int64_t row = panels.begin * kPanelChannels; row < end; ++row) fn(row);
  });
}

void clear_matrix(const PackedLayout& layout, uint8_t* packed) {
  const int slices = slices_for(layout.in_features * layout.out_features, kMinWeightsPerSlice);
  parallel(slices, [&](Slice slice) {
    const Range panels = slice.share(layout.num_panels());
    std::memset(packed + panels.begin * layout.panel_bytes(), 0,
                static_cast<size_t>((panels.end - panels.begin) * layout.panel_bytes()));
  });
}

// Buffers for one row outside its panel; one for each thread that converts rows.
struct RowBuffer {
  explicit RowBuffer(const PackedLayout& layout)
      : codes(static_cast<size_t>(layout.in_features)),
        scales(static_cast<size_t>(layout.num_groups())),
        minima(static_cast<size_t>(layout.num_groups())) {}
  WeightRow row() { return {codes.data(), scales.data(), minima.data()}; }

  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales, minima;
};

}  // namespace

void quantize_row(const PackedLayout& layout, const float* weight, const WeightRow& row) {
  const int64_t group_inputs = layout.group_blocks() * kBlockInputs;
  for (int64_t group = 0; group < layout.num_groups(); ++group) {
    const int64_t begin = group * group_inputs;
    const int64_t end = std::min(begin + group_inputs, layout.in_features);
    const auto [lowest, highest] = std::minmax_element(weight + begin, weight + end);
    float scale, minimum = 0.0f;
    if (layout.bits == 8) {
      scale = std::max(std::fabs(*lowest), std::fabs(*highest)) / 127.0f;
    } else if (!layout.has_minimum) {
      // The value of largest magnitude becomes code 0, which stands for -8.
      scale = (std::fabs(*lowest) >= std::fabs(*highest) ? *lowest : *highest) / -8.0f;
    } else {
      minimum = half_to_float(float_to_half(*lowest));
      scale = (*highest - minimum) / 15.0f;
      row.minima[group] = float_to_half(minimum);
    }
    row.scales[group] = float_to_half(scale);
    scale = half_to_float(row.scales[group]);
    const int zero_point = layout.zero_point();
    const int low_code = layout.bits == 8 ? 1 : 0;
    const int high_code = layout.bits == 8 ? 255 : 15;
    for (int64_t k = begin; k < end; ++k) {
      const float steps = scale == 0.0f ? 0.0f : (weight[k] - minimum) / scale;
      row.codes[k] = clamp_code(steps, zero_point, low_code, high_code);
    }
  }
}

void pack_row(const PackedLayout& layout, const WeightRow& row, int64_t channel, uint8_t* packed) {
  uint8_t* panel = packed + channel / kPanelChannels * layout.panel_bytes();
  const int64_t lane = channel % kPanelChannels;
  for (int64_t k = 0; k < layout.in_features; ++k) {
    uint8_t& byte = panel[code_offset(layout, k, lane)];
    byte =
        is_high_nibble(layout, k) ? static_cast<uint8_t>(byte | row.codes[k] << 4) : row.codes[k];
  }
  for (int64_t group = 0; group < layout.num_groups(); ++group) {
    uint8_t* head = panel + layout.codes_bytes() + group * layout.group_bytes() + lane * 2;
    std::memcpy(head, &row.scales[group], 2);
    if (layout.has_minimum) std::memcpy(head + 2 * kPanelChannels, &row.minima[group], 2);
  }
}

void unpack_row(const PackedLayout& layout, const uint8_t* packed, int64_t channel,
                const WeightRow& row) {
  const uint8_t* panel = packed + channel / kPanelChannels * layout.panel_bytes();
  const int64_t lane = channel % kPanelChannels;
  for (int64_t k = 0; k < layout.in_features; ++k) {
    const uint8_t byte = panel[code_offset(layout, k, lane)];
    row.codes[k] = layout.bits == 8            ? byte
                   : is_high_nibble(layout, k) ? static_cast<uint8_t>(byte >> 4)
                                               : static_cast<uint8_t>(byte & 0x0F);
  }
  for (int64_t group = 0; group < layout.num_groups(); ++group) {
    const uint8_t* head = panel + layout.codes_bytes() + group * layout.group_bytes() + lane * 2;
    std::memcpy(&row.scales[group], head, 2);
    if (layout.has_minimum) std::memcpy(&row.minima[group], head + 2 * kPanelChannels, 2);
  }
}

void pack_float_row(const PackedLayout& layout, const float* weight, int64_t channel,
                    uint8_t* packed) {
  uint8_t* panel = packed + channel / kPanelChannels * layout.panel_bytes();
  const int64_t lane = channel % kPanelChannels;
  for (int64_t k = 0; k < layout.in_features; ++k) {
    if (layout.bits == 32) {
      std::memcpy(panel + (k * kPanelChannels + lane) * 4, &weight[k], 4);
    } else {
      const uint16_t value = float_to_bf16(weight[k]);
      std::memcpy(panel + (k * kPanelChannels + lane) * 2, &value, 2);
    }
  }
}

void dequantize_row(const PackedLayout& layout, const uint8_t* packed, int64_t channel,
                    float* weight) {
  const uint8_t* panel = packed + channel / kPanelChannels * layout.panel_bytes();
  const int64_t lane = channel % kPanelChannels;
  if (!layout.is_integer()) {
    for (int64_t k = 0; k < layout.in_features; ++k) {
      if (layout.bits == 32) {
        std::memcpy(&weight[k], panel + (k * kPanelChannels + lane) * 4, 4);
      } else {
        uint16_t value;
        std::memcpy(&value, panel + (k * kPanelChannels + lane) * 2, 2);
        weight[k] = bf16_to_float(value);
      }
    }
    return;
  }
  const int64_t group_inputs = layout.group_blocks() * kBlockInputs;
  const int zero_point = layout.zero_point();
  for (int64_t group = 0; group < layout.num_groups(); ++group) {
    const uint8_t* head = panel + layout.codes_bytes() + group * layout.group_bytes() + lane * 2;
    uint16_t half;
    std::memcpy(&half, head, 2);
    const float scale = half_to_float(half);
    float minimum = 0.0f;
    if (layout.has_minimum) {
      std::memcpy(&half, head + 2 * kPanelChannels, 2);
      minimum = half_to_float(half);
    }
    const int64_t end = std::min((group + 1) * group_inputs, layout.in_features);
    for (int64_t k = group * group_inputs; k < end; ++k) {
      const uint8_t byte = panel[code_offset(layout, k, lane)];
      const int code = layout.bits == 8 ? byte : is_high_nibble(layout, k) ? byte >> 4 : byte & 15;
      const float value = scale * static_cast<float>(code - zero_point);
      weight[k] = layout.has_minimum ? value + minimum : value;
    }
  }
}

void quantize_matrix(const PackedLayout& layout, const float* weight, uint8_t* packed) {
  clear_matrix(layout, packed);
  for_each_row(layout, [&](int64_t row) {
    const float* source = weight + row * layout.in_features;
    if (!layout.is_integer()) return pack_float_row(layout, source, row, packed);
    RowBuffer buffer(layout);
    quantize_row(layout, source, buffer.row());
    pack_row(layout, buffer.row(), row, packed);
  });
}

void pack_matrix(const PackedLayout& layout, const uint8_t* codes, const float* scales,
                 const float* minima, uint8_t* packed) {
  clear_matrix(layout, packed);
  const int64_t num_groups = layout.num_groups();
  for_each_row(layout, [&](int64_t row) {
    RowBuffer buffer(layout);
    std::memcpy(buffer.codes.data(), codes + row * layout.in_features, buffer.codes.size());
    for (int64_t group = 0; group < num_groups; ++group) {
      const size_t i = static_cast<size_t>(group);
      buffer.scales[i] = float_to_half(scales[row * num_groups + group]);
      if (layout.has_minimum) buffer.minima[i] = float_to_half(minima[row * num_groups + group]);
    }
    pack_row(layout, buffer.row(), row, packed);
  });
}

void unpack_matrix(const PackedLayout& layout, const uint8_t* packed, uint8_t* codes, float* scales,
                   float* minima) {
  const int64_t num_groups = layout.num_groups();
  for_each_row(layout, [&](int64_t row) {
    RowBuffer buffer(layout);
    unpack_row(layout, packed, row, buffer.row());
    std::memcpy(codes + row * layout.in_features, buffer.codes.data(), buffer.codes.size());
    for (int64_t group = 0; group < num_groups; ++group) {
      const size_t i = static_cast<size_t>(group);
      scales[row * num_groups + group] = half_to_float(buffer.scales[i]);
      if (layout.has_minimum) minima[row * num_groups + group] = half_to_float(buffer.minima[i]);
    }
  });
}

void dequantize_matrix(const PackedLayout& layout, const uint8_t* packed, float* weight) {
  for_each_row(layout, [&](int64_t row) {
    dequantize_row(layout, packed, row, weight + row * layout.in_features);
  });
}

void run_embedding(const EmbeddingArgs& args) {
  const int64_t dim = args.layout.in_features;
  parallel(slices_for(args.rows * dim, kMinWeightsPerSlice), [&](Slice slice) {
    const Range rows = slice.share(args.rows);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      dequantize_row(args.layout, args.weight, args.token_ids[row], args.out + row * dim);
    }
  });
}

}  // namespace fdspec
