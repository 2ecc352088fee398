// SPDX-License-Identifier: Apache-2.0
// Views of Python arguments: numpy arrays and Paddle CPU tensors. Paddle is met through its Python
// attributes only, so this library needs no Paddle to build.
#pragma once

#include <pybind11/pybind11.h>

#include "common/array_view.h"

namespace fdspec {

namespace py = pybind11;

class Array : public ArrayView {
 public:
  // Throws if the object is neither, or not C-contiguous. bfloat16 is uint16 in numpy.
  Array(py::handle object, const char* name);

  // A new array of the kind of this one; its content, at *address, is undefined.
  py::object new_like(std::initializer_list<int64_t> shape, DType dtype, void** address) const;

 private:
  void read_numpy(py::handle object);
  void read_paddle(py::handle object);

  bool is_paddle_ = false;
};

// An argument that may be None. view() is nullptr then.
class OptionalArray {
 public:
  OptionalArray(py::handle object, const char* name) : is_present_(!object.is_none()), view_(name) {
    if (is_present_) view_ = Array(object, name);
  }
  const ArrayView* view() const { return is_present_ ? &view_ : nullptr; }

 private:
  bool is_present_;
  ArrayView view_;
};

// Makes an output and hands out where to write.
template <class T>
py::object new_output(const Array& like, std::initializer_list<int64_t> shape, T** address) {
  void* data = nullptr;
  py::object out = like.new_like(shape, dtype_of<T>(), &data);
  *address = static_cast<T*>(data);
  return out;
}

// Runs fn() without Python's global lock.
template <class Fn>
void without_gil(Fn fn) {
  const py::gil_scoped_release release;
  fn();
}

}  // namespace fdspec
