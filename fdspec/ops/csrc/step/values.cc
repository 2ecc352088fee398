// SPDX-License-Identifier: Apache-2.0
#include "step/values.h"

#include <algorithm>
#include <string>

#include "common/array_view.h"

namespace fdspec {

Value ValueTable::add(const ValueInfo& info) {
  values_.push_back(info);
  return static_cast<Value>(values_.size() - 1);
}

const ValueInfo& ValueTable::info(Value value, const char* name) const {
  if (value < 0 || value >= static_cast<Value>(values_.size())) {
    throw ArgumentError(std::string(name) + ": " + std::to_string(value) +
                        " is no value of this program, which has " +
                        std::to_string(values_.size()));
  }
  return (*this)[value];
}

void ValueTable::use(Value value, int segment, int time) {
  ValueInfo& info = values_[static_cast<size_t>(value)];
  info.read_at = std::max(info.read_at, time);
  info.is_local = info.is_local && segment == info.segment;
}

void ValueTable::place() {
  global_width_ = 0;
  local_width_ = 0;
  std::vector<ValueInfo*> holders;
  int segment = -1;
  int64_t used = 0;
  for (ValueInfo& value : values_) {
    if (value.activation != Activation::kPlain || value.is_result) continue;
    if (!value.is_local) {
      place_global(value, holders);
      continue;
    }
    if (value.segment != segment) used = 0;
    segment = value.segment;
    value.offset = used;
    used += value.width;
    local_width_ = std::max(local_width_, used);
  }
}

void ValueTable::place_global(ValueInfo& value, std::vector<ValueInfo*>& holders) {
  for (ValueInfo*& holder : holders) {
    if (holder->width != value.width || holder->read_at >= value.written_at) continue;
    value.offset = holder->offset;
    holder = &value;
    return;
  }
  value.offset = global_width_;
  global_width_ += value.width;
  holders.push_back(&value);
}

}  // namespace fdspec
