// SPDX-License-Identifier: Apache-2.0
// The layers of a step program that work row by row.
#pragma once

#include "linear/linear.h"
#include "step/memory.h"
#include "step/rotate_append.h"
#include "step/values.h"

namespace fdspec {

struct StepInputs;

// What a running step looks things up in.
struct StepFrame {
  const StepInputs& inputs;
  const ValueTable& values;
  const StepMemory& memory;
  const AttentionPlan& attention_plan;
  float* attention_workspace;

  float* address(Value value, const Tile& tile) const {
    return memory.address(values[value], tile);
  }
};

class RowStep {
 public:
  virtual ~RowStep() = default;

  // Computes the tile's rows; every slice of the tile calls it, and when it has returned in one
  // slice, all have finished.
  virtual void run(const StepFrame& frame, const Tile& tile) const = 0;
};

class EmbeddingStep : public RowStep {
 public:
  EmbeddingStep(const PackedLayout& layout, const uint8_t* weight, Value out)
      : layout_(layout), weight_(weight), out_(out) {}
  void run(const StepFrame& frame, const Tile& tile) const override;

 private:
  PackedLayout layout_;
  const uint8_t* weight_;
  Value out_;
};

class LinearStep : public RowStep {
 public:
  // `args` holds layout, kind of product, weight and bias; input is a stored value or an
  // activation.
  LinearStep(const LinearArgs& args, Value input, Value residual, Value out)
      : args_(args), input_(input), residual_(residual), out_(out) {}
  bool has_residual() const { return residual_ != kNoValue; }
  // The result goes to StepInputs::out with its block_maxima, or the best token of each row to
  // best_tokens.
  void set_is_last(bool is_last) { is_last_ = is_last; }
  void run(const StepFrame& frame, const Tile& tile) const override;

 private:
  // The input's rows as the product takes them: quantised, or floats.
  struct Prepared {
    const QuantizedBlock* blocks;
    const float* x;
  };
  bool is_integer() const { return args_.layout.is_integer() && !args_.float_activations; }
  ActivationArgs activation_args(const StepFrame& frame, const Tile& tile) const;
  Prepared prepare_blocks(ActivationArgs activation, const Tile& tile) const;
  Prepared prepare_floats(ActivationArgs activation, const Tile& tile) const;
  void multiply(LinearArgs args, const Prepared& input, const Area& area, Slice slice) const;
  void choose_best(const StepFrame& frame, const Prepared& input, const Tile& tile) const;
  void publish(const StepFrame& frame, const Prepared& input, const Tile& tile) const;
  // Computes the columns of some panels for all rows, a part at a time, in memory of the thread
  // that stays in its nearest cache: use(the part, its first column, its first row in the tile).
  template <class Use>
  void for_each_part(Range panels, const Prepared& input, const Tile& tile, Use use) const;

  LinearArgs args_;
  Value input_;
  Value residual_;
  Value out_;
  bool is_last_ = false;
};

class RotateAppendStep : public RowStep {
 public:
  // `args` holds all that does not depend on the step.
  RotateAppendStep(const RotateAppendArgs& args, Value qkv, Value query)
      : args_(args), qkv_(qkv), query_(query) {}
  void run(const StepFrame& frame, const Tile& tile) const override;

 private:
  RotateAppendArgs args_;
  Value qkv_;
  Value query_;
};

// Copies the rows of hidden states that come with the step.
class HiddenStep : public RowStep {
 public:
  HiddenStep(int64_t width, Value out) : width_(width), out_(out) {}
  void run(const StepFrame& frame, const Tile& tile) const override;

 private:
  int64_t width_;
  Value out_;
};

// Where rows are kept in the cache, as bfloat16.
struct TapCache {
  uint16_t* data;  // [slots, width]
  int64_t num_slots;
  int64_t width;
};

// Writes rows to the cache, each to its slot.
class TapStep : public RowStep {
 public:
  TapStep(const TapCache& cache, Value input) : cache_(cache), input_(input) {}
  void run(const StepFrame& frame, const Tile& tile) const override;

 private:
  TapCache cache_;
  Value input_;
};

// Copies the rows whose results are wanted; to StepInputs::hidden_out, too.
class SelectStep : public RowStep {
 public:
  SelectStep(Value input, Value out) : input_(input), out_(out) {}
  void run(const StepFrame& frame, const Tile& tile) const override;

 private:
  Value input_;
  Value out_;
};

}  // namespace fdspec
