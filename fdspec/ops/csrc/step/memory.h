// SPDX-License-Identifier: Apache-2.0
// The memory of a step program, planned once and grown to the largest step so far.
#pragma once

#include <cstdint>

#include "common/aligned_buffer.h"
#include "linear/linear.h"
#include "sampling/argmax.h"
#include "sampling/block_maxima.h"
#include "step/values.h"

namespace fdspec {

// What the rows that are being worked on need beside the global values.
struct Area {
  int64_t capacity;        // rows
  float* values;           // [capacity * local width]: local values, one after the other
  float* activations;      // [capacity * widest input]
  QuantizedBlock* blocks;  // of `capacity` rows of the widest input
  float* sums;             // [slices, capacity * kMaxFloatPanels * kPanelChannels]
  float* scratch;          // [slices, widest input]
  float* logits;           // [kMaxTileRows, kLogitChunk]
};

// The rows that a thread, or all threads together, take through the steps of a segment.
struct Tile {
  Range rows;
  Slice slice;
  Area area;  // of all slices together
  Area own;   // of this thread alone

  int64_t num_rows() const { return rows.end - rows.begin; }
};

// Rows for which a thread gets tiles of its own; below, threads share each row.
inline constexpr int64_t kMinTileRows = 32;
// Rows of a tile at most: the values of a segment stay in the second-level cache, and weights are
// read once for so many rows.
inline constexpr int64_t kMaxTileRows = 128;

// Tokens whose logits are there at the same time on their way to the best one, or to the caller.
inline constexpr int64_t kLogitChunk = 512;

class StepMemory {
 public:
  // Widest input of a linear layer.
  void note_input_width(int64_t width);
  int64_t max_input_width() const { return max_input_width_; }

  // Makes room for steps of `rows` rows, of which some are selected, on so many threads.
  void reserve(const ValueTable& values, int64_t rows, int64_t num_selected, int num_threads);

  // For one thread, kMaxTileRows rows.
  Area thread_area(int thread) const;
  // For all of them, kMinTileRows rows a thread.
  Area shared_area() const;

  // [selected] best tokens as far as a thread has seen them.
  BestToken* best_tokens(int thread) const { return best_ + thread * num_selected_; }

  // First row of the tile in a stored value.
  float* address(const ValueInfo& value, const Tile& tile) const;
  // First row of a global value.
  float* global_address(const ValueInfo& value) const;

 private:
  int64_t area_bytes(int64_t capacity, int num_slices) const;
  Area area_at(char* base, int64_t capacity, int num_slices) const;

  int64_t local_width_ = 0;
  int64_t max_input_width_ = 0;
  int64_t num_rows_ = 0;
  int64_t num_selected_ = 0;
  int num_threads_ = 1;
  AlignedBuffer global_buffer_;
  AlignedBuffer area_buffer_;
  AlignedBuffer best_buffer_;
  float* global_ = nullptr;
  char* areas_ = nullptr;
  BestToken* best_ = nullptr;
};

}  // namespace fdspec
