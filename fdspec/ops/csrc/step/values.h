// SPDX-License-Identifier: Apache-2.0
// The values of a step program: what rows of floats there are, how long they live, and where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "linear/activations.h"

namespace fdspec {

// Index into the program's values.
using Value = int;
inline constexpr Value kNoValue = -1;

// A value is stored, or it is an activation of a stored one, which its only user computes.
struct ValueInfo {
  int64_t width;  // floats a row
  Activation activation = Activation::kPlain;
  Value source = kNoValue;  // of an activation
  const float* norm_weight = nullptr;
  float epsilon = 0.0f;
  // Times (positions in the program) of computing it and of its last use.
  int written_at = 0;
  int read_at = 0;
  int segment = 0;
  // True if it is used in its segment only: then a tile of rows is all that has to be kept of it.
  bool is_local = true;
  // True for the program's result, which goes to the caller.
  bool is_result = false;
  // Floats a row before it in the memory that it shares with the other values of its kind.
  int64_t offset = 0;
};

class ValueTable {
 public:
  Value add(const ValueInfo& info);

  // Throws if there is no such value.
  const ValueInfo& info(Value value, const char* name) const;
  int64_t width(Value value) const { return values_[static_cast<size_t>(value)].width; }
  const ValueInfo& operator[](Value value) const { return values_[static_cast<size_t>(value)]; }

  // Notes that a step reads a stored value.
  void use(Value value, int segment, int time);

  // Keeps all rows of a value that is computed outside its segment's tiles.
  void set_global(Value value) { values_[static_cast<size_t>(value)].is_local = false; }

  void set_result(Value value) { values_[static_cast<size_t>(value)].is_result = true; }

  // Gives every value its place; values of equal width share one if they do not live at the same
  // time.
  void place();
  // Floats a row of all values that outlive their segment, and of the others of one segment.
  int64_t global_width() const { return global_width_; }
  int64_t local_width() const { return local_width_; }

 private:
  void place_global(ValueInfo& value, std::vector<ValueInfo*>& holders);

  std::vector<ValueInfo> values_;
  int64_t global_width_ = 0;
  int64_t local_width_ = 0;
};

}  // namespace fdspec
