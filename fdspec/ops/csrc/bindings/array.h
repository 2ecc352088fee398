// SPDX-License-Identifier: Apache-2.0
// What a binding knows of an argument: a checked view of a numpy array or a Paddle CPU tensor.
// Paddle is met through its Python attributes only, so this library needs no Paddle to build.
// Errors name the argument: TypeError for kind and dtype, ValueError for shape and layout.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace fdspec {

namespace py = pybind11;

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

const char* dtype_name(DType dtype);

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

// Accepts any size in a shape passed to expect_shape().
inline constexpr int64_t kAnySize = -1;

class Array {
 public:
  static constexpr int kMaxDims = 6;

  // `name` must be a literal: it is kept for later messages. bfloat16 is uint16 in numpy.
  Array(py::handle object, const char* name);

  const char* name() const { return name_; }
  DType dtype() const { return dtype_; }
  int ndim() const { return ndim_; }
  int64_t size(int axis) const { return shape_[axis]; }
  int64_t num_elements() const;

  // Each returns *this, or throws naming the argument.
  const Array& expect_dtype(std::initializer_list<DType> allowed) const;
  const Array& expect_ndim(int ndim) const;
  const Array& expect_shape(std::initializer_list<int64_t> shape) const;

  // Throws if a numpy array is read-only.
  const Array& expect_writable() const;

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
  void* address() const { return address_; }

  // A new array of the kind of this one, numpy or Paddle; its content is undefined.
  py::object new_like(std::initializer_list<int64_t> shape, DType dtype = DType::kFloat32) const;

  // "[6, 576] float32"
  std::string describe() const;

 private:
  void read_numpy(py::handle object);
  void read_paddle(py::handle object);
  [[noreturn]] void fail_layout() const;

  const char* name_;
  void* address_ = nullptr;
  DType dtype_ = DType::kFloat32;
  int ndim_ = 0;
  bool writable_ = true;
  bool is_paddle_ = false;
  int64_t shape_[kMaxDims] = {};
};

// Shorthand for the usual argument: dtype of T and an exact shape (kAnySize where free).
template <class T>
const T* input(const Array& array, std::initializer_list<int64_t> shape) {
  array.expect_shape(shape);
  return array.data<T>();
}
template <class T>
T* output(const Array& array, std::initializer_list<int64_t> shape) {
  array.expect_shape(shape);
  return array.mutable_data<T>();
}

// The same for an argument that may be None, which gives nullptr.
template <class T>
const T* optional_input(py::handle object, const char* name, std::initializer_list<int64_t> shape) {
  return object.is_none() ? nullptr : input<T>(Array(object, name), shape);
}

}  // namespace fdspec
