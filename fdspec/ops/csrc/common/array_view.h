// SPDX-License-Identifier: Apache-2.0
// What an op is told of an array argument: its name, address, dtype and shape. The checks of all
// ops are written against this, once; a binding makes views of numpy arrays or Paddle tensors.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "common/isa.h"

namespace fdspec {

enum class DType {
  kFloat32,
  kBFloat16,
  kFloat16,
  kInt8,
  kUInt8,
  kInt32,
  kUInt32,
  kInt64,
  kUInt64,
  kBool
};

struct DTypeInfo {
  DType dtype;
  const char* name;
  char numpy_kind;  // bfloat16 travels as numpy's uint16
  int num_bytes;
};

inline constexpr DTypeInfo kDTypes[] = {
    {DType::kFloat32, "float32", 'f', 4}, {DType::kBFloat16, "bfloat16", 'u', 2},
    {DType::kFloat16, "float16", 'f', 2}, {DType::kInt8, "int8", 'i', 1},
    {DType::kUInt8, "uint8", 'u', 1},     {DType::kInt32, "int32", 'i', 4},
    {DType::kUInt32, "uint32", 'u', 4},   {DType::kInt64, "int64", 'i', 8},
    {DType::kUInt64, "uint64", 'u', 8},   {DType::kBool, "bool", 'b', 1},
};

FDSPEC_EXPORT const DTypeInfo& dtype_info(DType dtype);

// The dtype of a C type; bfloat16 is uint16_t.
template <class T>
constexpr DType dtype_of() = delete;
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::kBFloat16;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::kInt8;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::kUInt8;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType dtype_of<uint32_t>() {
  return DType::kUInt32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::kInt64;
}
template <>
constexpr DType dtype_of<uint64_t>() {
  return DType::kUInt64;
}

// A caller's mistake; the message begins with the argument's name. ArgumentTypeError is about the
// kind or dtype of an argument (Python's TypeError), ArgumentError about all else (ValueError).
class FDSPEC_EXPORT ArgumentError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};
class FDSPEC_EXPORT ArgumentTypeError : public ArgumentError {
 public:
  using ArgumentError::ArgumentError;
};

// Accepts any size in a shape passed to expect_shape().
inline constexpr int64_t kAnySize = -1;

// A C-contiguous array.
class FDSPEC_EXPORT ArrayView {
 public:
  static constexpr int kMaxDims = 6;

  // `name` must be a literal: it is kept for later messages.
  explicit ArrayView(const char* name) : name_(name) {}
  ArrayView(const char* name, void* address, DType dtype, std::initializer_list<int64_t> shape);

  const char* name() const { return name_; }
  DType dtype() const { return dtype_; }
  int ndim() const { return ndim_; }
  int64_t size(int axis) const { return shape_[axis]; }
  int64_t num_elements() const;
  void* address() const { return address_; }

  // Each returns *this, or throws naming the argument.
  const ArrayView& expect_dtype(std::initializer_list<DType> allowed) const;
  const ArrayView& expect_ndim(int ndim) const;
  const ArrayView& expect_shape(std::initializer_list<int64_t> shape) const;
  const ArrayView& expect_writable() const;

  template <class T>
  const T* data() const {
    expect_dtype({dtype_of<T>()});
    return static_cast<const T*>(address_);
  }
  template <class T>
  T* mutable_data() const {
    expect_dtype({dtype_of<T>()});
    expect_writable();
    return static_cast<T*>(address_);
  }

  // "[6, 576] float32"
  std::string describe() const;

 protected:
  // For bindings. Throws if there are too many dimensions.
  void set_ndim(int64_t ndim);
  [[noreturn]] void fail_layout() const;
  [[noreturn]] void fail_dtype(const std::string& dtype) const;

  const char* name_;
  void* address_ = nullptr;
  DType dtype_ = DType::kFloat32;
  int ndim_ = 0;
  bool writable_ = true;
  int64_t shape_[kMaxDims] = {};
};

// The usual argument: dtype of T and a shape (kAnySize where free).
template <class T>
const T* input(const ArrayView& array, std::initializer_list<int64_t> shape) {
  array.expect_shape(shape);
  return array.data<T>();
}
template <class T>
T* output(const ArrayView& array, std::initializer_list<int64_t> shape) {
  array.expect_shape(shape);
  return array.mutable_data<T>();
}

// The same for an argument that may be absent: nullptr gives nullptr.
template <class T>
const T* optional_input(const ArrayView* array, std::initializer_list<int64_t> shape) {
  return array == nullptr ? nullptr : input<T>(*array, shape);
}

}  // namespace fdspec
