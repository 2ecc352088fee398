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
  // activation; is_last: the result goes to StepInputs::out.
  LinearStep(const LinearArgs& args, Value input, Value residual, Value out)
      : args_(args), input_(input), residual_(residual), out_(out) {}
  void set_is_last(bool is_last) { is_last_ = is_last; }
  void run(const StepFrame& frame, const Tile& tile) const override;

 private:
  ActivationArgs activation_args(const StepFrame& frame, const Tile& tile) const;
  void run_integer(const LinearArgs& args, ActivationArgs activation, const Tile& tile) const;
  void run_float(LinearArgs args, ActivationArgs activation, const Tile& tile) const;

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

// Copies the rows whose results are wanted.
class SelectStep : public RowStep {
 public:
  SelectStep(Value input, Value out) : input_(input), out_(out) {}
  void run(const StepFrame& frame, const Tile& tile) const override;

 private:
  Value input_;
  Value out_;
};

}  // namespace fdspec
