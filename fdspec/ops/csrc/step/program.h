// SPDX-License-Identifier: Apache-2.0
// StepProgram: the whole forward pass of a model as one call, for any number of rows.
//
// It is built once, from the layers of a model: each call of a building method adds a layer and
// returns the value that it computes. run() computes a step in one parallel region. Weights,
// tables and caches belong to the caller and must outlive the program.
//
// Layers between two attentions (or mixtures of experts, where rows meet, too) work row by row;
// they form a segment. With many rows each thread takes tiles of rows through a whole segment, so
// that what a tile computes stays in its cache and nobody waits; with few rows the threads share
// the columns of every product and meet after each. Either way a row's bits are those of the single
// ops.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "common/aligned_buffer.h"
#include "experts/experts.h"
#include "experts/route.h"
#include "linear/packed_weight.h"
#include "step/row_step.h"
#include "step/values.h"

namespace fdspec {

// The rows of a step.
struct StepInputs {
  const int32_t* token_ids;    // [rows]
  const int32_t* positions;    // [rows]
  const int64_t* slots;        // [rows], each inside the cache
  const int32_t* block_table;  // [sequences, max_blocks]
  int64_t max_blocks;
  AttentionRows rows;
  const int64_t* selected_rows;  // [num_selected]
  int64_t num_selected;
  const float* hidden;   // [rows, width of hidden()]; null if the program has none
  float* hidden_out;     // [num_selected, width of select()] the selected rows themselves, or null
  float* out;            // [num_selected, width of the program's last value]; or null, then
  int32_t* best_tokens;  // [num_selected] column of the largest of each row (argmax.h)
  float* block_maxima;   // [num_selected, blocks] of the rows of `out` (block_maxima.h), or null
};

// Attention of one layer, after the queries, keys and values of all rows are there.
struct AttentionStep {
  int number;  // of the attention in the program, from 1
  Value query;
  Value out;
  PagedCache cache;
  float scale;
};

// Experts of one layer, after the logits of all rows are there.
struct ExpertsStep {
  ExpertWeights weights;
  Routing routing;
  Value x;
  Value logits;
  Value residual;
  Value out;
};

// Layers that work row by row, and the attention or the experts that follow them, if any do.
struct Segment {
  bool of_selected = false;
  std::vector<std::unique_ptr<RowStep>> steps;
  std::unique_ptr<AttentionStep> attention;
  std::unique_ptr<ExpertsStep> experts;
};

struct PackedMatrix {
  PackedLayout layout;
  const uint8_t* data;  // layout.total_bytes()
};

class StepProgram {
 public:
  StepProgram();
  ~StepProgram();

  // Rows token_ids of a matrix.
  Value embedding(const PackedMatrix& weight);

  // Rows that come with the step, StepInputs::hidden.
  Value hidden(int64_t width);

  // Writes x to a place in the cache, at the rows' slots; x stays as it is.
  void tap(Value x, const TapCache& cache);

  // weight: [width of x]. Only linear() and experts() may take the result.
  Value rms_norm(Value x, const float* weight, float epsilon);

  // x: gate, then up. Only linear() may take the result.
  Value swiglu(Value x);

  // bias: [out_features] or null; residual: a value or kNoValue.
  Value linear(Value x, const PackedMatrix& weight, bool float_activations, const float* bias,
               Value residual);

  struct AttentionLayer {
    AttentionShape shape;
    PagedCache cache;
    HeadNorm query_norm;
    HeadNorm key_norm;
    const float* cos;  // [max_positions, head_dim / 2]
    const float* sin;
    int64_t max_positions;
    float scale;
  };
  // qkv: queries, keys and values beside each other.
  Value attention(Value qkv, const AttentionLayer& layer);

  // x: [hidden], normalised or stored; logits: one for each expert; residual: a value or kNoValue.
  Value experts(Value x, Value logits, const ExpertWeights& weights, const Routing& routing,
                Value residual);

  // The rows StepInputs::selected_rows of x. Layers after it compute those alone.
  Value select(Value x);

  // Columns of a value; throws if there is no such value.
  int64_t width(Value x) const { return values_.info(x, "x").width; }

  // What the program has been built for; checks of a step's arguments need it.
  int64_t out_width() const { return values_.width(last_); }
  int64_t vocab_size() const { return vocab_size_; }
  // 0 if no rows come with a step.
  int64_t hidden_width() const { return hidden_width_; }
  int64_t selected_width() const { return selected_width_; }
  int64_t max_positions() const { return max_positions_; }
  // Null if there is no attention.
  const PagedCache* cache() const;

  // The keys of a sequence begin in this slot; until it is called, in slot 0.
  void set_first_slot(int first_slot) { first_slot_ = first_slot; }
  int first_slot() const { return first_slot_; }

  // To be called once, after the last layer, which must be linear over selected rows,
  // without a residual.
  void finish();
  bool is_finished() const { return is_finished_; }

  // The program is finished and the inputs have been checked. Not for two threads at a time.
  void run(const StepInputs& inputs);

  // Attentions of the running step whose keys and values are all in the cache.
  int num_layers_appended() const { return num_appended_.load(std::memory_order_acquire); }

 private:
  int segment_index() const;
  // Notes that the next step reads a stored value.
  void read(Value value);
  // The stored value that the next step computes.
  Value store(int64_t width);
  void run_rows(size_t segment, const StepFrame& frame, Slice slice);
  void attend(size_t segment, const StepFrame& frame, Slice slice);
  void reserve_experts(int64_t rows, int num_threads);
  void mix_experts(const ExpertsStep& step, const StepFrame& frame, Slice slice);

  ValueTable values_;
  std::vector<Segment> segments_;
  Value last_ = kNoValue;
  LinearStep* last_linear_ = nullptr;
  int time_ = 0;
  bool is_finished_ = false;
  AttentionShape shape_{};
  int64_t vocab_size_ = 0;
  int64_t hidden_width_ = 0;
  int64_t selected_width_ = 0;
  int first_slot_ = 0;
  int64_t min_tap_slots_ = std::numeric_limits<int64_t>::max();
  int64_t max_positions_ = 0;
  StepMemory memory_;
  int num_attentions_ = 0;
  AlignedBuffer attention_workspace_;
  // Of the experts of one layer at a time.
  ExpertPlaces expert_places_;
  AlignedBuffer chosen_experts_, expert_factors_, experts_workspace_;
  std::unique_ptr<std::atomic<int64_t>[]> next_tiles_;
  std::atomic<int> num_appended_{0};
};

}  // namespace fdspec
