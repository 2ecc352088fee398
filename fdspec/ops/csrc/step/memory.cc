// SPDX-License-Identifier: Apache-2.0
#include "step/memory.h"

#include <algorithm>

namespace fdspec {
namespace {

constexpr int64_t kLine = 64;

int64_t whole_lines(int64_t num_bytes) { return ceil_div(num_bytes, kLine) * kLine; }

int64_t float_bytes(int64_t count) {
  return whole_lines(count * static_cast<int64_t>(sizeof(float)));
}

int64_t block_bytes(int64_t rows, int64_t width) {
  return whole_lines(num_quantized_blocks(rows, width) *
                     static_cast<int64_t>(sizeof(QuantizedBlock)));
}

int64_t num_sums(int64_t rows) { return rows * kMaxFloatPanels * kPanelChannels; }

}  // namespace

void StepMemory::note_input_width(int64_t width) {
  max_input_width_ = std::max(max_input_width_, width);
}

void StepMemory::reserve(const ValueTable& values, int64_t rows, int64_t num_selected,
                         int num_threads) {
  local_width_ = values.local_width();
  num_threads_ = num_threads;
  num_rows_ = rows;
  num_selected_ = num_selected;
  best_ = static_cast<BestToken*>(
      best_buffer_.reserve(num_threads * num_selected * static_cast<int64_t>(sizeof(BestToken))));
  global_ = static_cast<float*>(global_buffer_.reserve(float_bytes(rows * values.global_width())));
  const int64_t bytes = area_bytes(kMinTileRows * num_threads, num_threads) +
                        num_threads * area_bytes(kMaxTileRows, 1);
  areas_ = static_cast<char*>(area_buffer_.reserve(bytes));
}

int64_t StepMemory::area_bytes(int64_t capacity, int num_slices) const {
  return float_bytes(capacity * local_width_) + float_bytes(capacity * max_input_width_) +
         block_bytes(capacity, max_input_width_) + float_bytes(num_slices * num_sums(capacity)) +
         float_bytes(num_slices * max_input_width_) + float_bytes(kMaxTileRows * kLogitChunk);
}

Area StepMemory::area_at(char* base, int64_t capacity, int num_slices) const {
  const auto take = [&base](int64_t num_bytes) {
    char* const at = base;
    base += num_bytes;
    return at;
  };
  Area area;
  area.capacity = capacity;
  area.values = reinterpret_cast<float*>(take(float_bytes(capacity * local_width_)));
  area.activations = reinterpret_cast<float*>(take(float_bytes(capacity * max_input_width_)));
  area.blocks = reinterpret_cast<QuantizedBlock*>(take(block_bytes(capacity, max_input_width_)));
  area.sums = reinterpret_cast<float*>(take(float_bytes(num_slices * num_sums(capacity))));
  area.scratch = reinterpret_cast<float*>(take(float_bytes(num_slices * max_input_width_)));
  area.logits = reinterpret_cast<float*>(take(float_bytes(kMaxTileRows * kLogitChunk)));
  return area;
}

Area StepMemory::shared_area() const {
  return area_at(areas_, kMinTileRows * num_threads_, num_threads_);
}

Area StepMemory::thread_area(int thread) const {
  char* const base = areas_ + area_bytes(kMinTileRows * num_threads_, num_threads_) +
                     thread * area_bytes(kMaxTileRows, 1);
  return area_at(base, kMaxTileRows, 1);
}

float* StepMemory::address(const ValueInfo& value, const Tile& tile) const {
  if (value.is_local) return tile.area.values + tile.area.capacity * value.offset;
  return global_address(value) + tile.rows.begin * value.width;
}

float* StepMemory::global_address(const ValueInfo& value) const {
  return global_ + num_rows_ * value.offset;
}

}  // namespace fdspec
