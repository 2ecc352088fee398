// SPDX-License-Identifier: Apache-2.0
#include "common/array_view.h"

#include <algorithm>

namespace fdspec {

const DTypeInfo& dtype_info(DType dtype) {
  return *std::find_if(std::begin(kDTypes), std::end(kDTypes),
                       [dtype](const DTypeInfo& info) { return info.dtype == dtype; });
}

ArrayView::ArrayView(const char* name, void* address, DType dtype,
                     std::initializer_list<int64_t> shape)
    : name_(name), address_(address), dtype_(dtype) {
  set_ndim(static_cast<int64_t>(shape.size()));
  std::copy(shape.begin(), shape.end(), shape_);
}

int64_t ArrayView::num_elements() const {
  int64_t count = 1;
  for (int axis = 0; axis < ndim_; ++axis) count *= shape_[axis];
  return count;
}

const ArrayView& ArrayView::expect_dtype(std::initializer_list<DType> allowed) const {
  std::string text;
  for (const DType dtype : allowed) {
    if (dtype == dtype_) return *this;
    text += (text.empty() ? "" : " or ") + std::string(dtype_info(dtype).name);
  }
  throw ArgumentTypeError(std::string(name_) + ": expected dtype " + text + ", got " +
                          dtype_info(dtype_).name);
}

const ArrayView& ArrayView::expect_ndim(int ndim) const {
  if (ndim == ndim_) return *this;
  throw ArgumentError(std::string(name_) + ": expected " + std::to_string(ndim) +
                      " dimensions, got " + describe());
}

const ArrayView& ArrayView::expect_shape(std::initializer_list<int64_t> shape) const {
  bool equal = static_cast<int>(shape.size()) == ndim_;
  int axis = 0;
  for (const int64_t size : shape) {
    equal = equal && (size == kAnySize || size == shape_[axis]);
    ++axis;
  }
  if (equal) return *this;
  std::string text;
  for (const int64_t size : shape) {
    text += (text.empty() ? "" : ", ") + (size == kAnySize ? "any" : std::to_string(size));
  }
  throw ArgumentError(std::string(name_) + ": expected shape [" + text + "], got " + describe());
}

const ArrayView& ArrayView::expect_writable() const {
  if (!writable_) throw ArgumentError(std::string(name_) + ": is read-only");
  return *this;
}

std::string ArrayView::describe() const {
  std::string text;
  for (int axis = 0; axis < ndim_; ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(shape_[axis]);
  }
  return "[" + text + "] " + dtype_info(dtype_).name;
}

void ArrayView::set_ndim(int64_t ndim) {
  if (ndim > kMaxDims) {
    throw ArgumentError(std::string(name_) + ": has " + std::to_string(ndim) +
                        " dimensions, at most " + std::to_string(kMaxDims) + " are supported");
  }
  ndim_ = static_cast<int>(ndim);
}

void ArrayView::fail_layout() const {
  throw ArgumentError(std::string(name_) +
                      ": must be C-contiguous (use numpy.ascontiguousarray or .contiguous())");
}

void ArrayView::fail_dtype(const std::string& dtype) const {
  throw ArgumentTypeError(std::string(name_) + ": unsupported dtype " + dtype);
}

}  // namespace fdspec
