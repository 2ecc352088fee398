// SPDX-License-Identifier: Apache-2.0
#include "bindings/array.h"

#include <pybind11/numpy.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fdspec {
namespace {

// Which Python objects are Paddle's Tensor types and dtypes (few, and they live for ever), and how
// to make a tensor. Guarded by the GIL.
struct PaddleNames {
  std::vector<py::handle> tensor_types;
  std::vector<std::pair<py::handle, DType>> dtypes;
  py::str data_ptr{"data_ptr"}, shape{"shape"}, dtype{"dtype"}, is_contiguous{"is_contiguous"},
      place{"place"};
  bool has_devices = false;
  py::object empty, cpu_place;

  static PaddleNames& instance() {
    static PaddleNames* names = new PaddleNames;
    return *names;
  }

  bool is_tensor(py::handle object) {
    const py::handle type = py::type::handle_of(object);
    for (const py::handle known : tensor_types) {
      if (known.is(type)) return true;
    }
    const py::object modules = py::module_::import("sys").attr("modules");
    if (!modules.contains("paddle")) return false;
    const py::object paddle = modules["paddle"];
    if (!py::hasattr(paddle, "Tensor") || !py::isinstance(object, paddle.attr("Tensor"))) {
      return false;
    }
    if (tensor_types.empty()) read_module(paddle);
    tensor_types.push_back(py::object(py::reinterpret_borrow<py::object>(type)).release());
    return true;
  }

  void read_module(const py::object& paddle) {
    has_devices = py::cast<bool>(paddle.attr("is_compiled_with_cuda")());
    // The operator itself: paddle.empty() spends three times as long on its arguments.
    empty = paddle.attr("_C_ops").attr("empty");
    cpu_place = paddle.attr("CPUPlace")();
    for (const DTypeInfo& info : kDTypes) {
      if (!py::hasattr(paddle, info.name)) continue;
      dtypes.emplace_back(py::object(paddle.attr(info.name)).release(), info.dtype);
    }
  }

  py::handle object_of(DType dtype) const {
    for (const auto& [object, value] : dtypes) {
      if (value == dtype) return object;
    }
    return py::none();
  }
};

// numpy's object for a dtype; each is made once and lives for ever. Guarded by the GIL.
py::dtype numpy_dtype(DType dtype) {
  static auto* const known = new std::map<DType, py::dtype>;
  const auto found = known->find(dtype);
  if (found != known->end()) return found->second;
  const DTypeInfo& info = dtype_info(dtype);
  const std::string code = info.numpy_kind + std::to_string(info.num_bytes);
  return known->emplace(dtype, py::dtype(code)).first->second;
}

void* address_of(py::handle tensor, const PaddleNames& names) {
  void* address = PyLong_AsVoidPtr(tensor.attr(names.data_ptr)().ptr());
  if (address == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return address;
}

}  // namespace

Array::Array(py::handle object, const char* name) : ArrayView(name) {
  if (py::isinstance<py::array>(object)) {
    read_numpy(object);
  } else if (PaddleNames::instance().is_tensor(object)) {
    read_paddle(object);
  } else {
    throw ArgumentTypeError(std::string(name) +
                            ": expected a numpy array or a paddle CPU tensor, got " +
                            std::string(py::str(py::type::handle_of(object).attr("__name__"))));
  }
}

void Array::read_numpy(py::handle object) {
  const auto array = py::reinterpret_borrow<py::array>(object);
  const py::dtype dtype = array.dtype();
  const char kind = dtype.kind();
  const py::ssize_t num_bytes = dtype.itemsize();
  const DTypeInfo* found = nullptr;
  for (const DTypeInfo& info : kDTypes) {
    if (info.numpy_kind == kind && info.num_bytes == num_bytes) found = &info;
  }
  if (found == nullptr) fail_dtype(py::str(dtype));
  dtype_ = found->dtype;
  set_ndim(array.ndim());
  for (int axis = 0; axis < ndim_; ++axis) shape_[axis] = array.shape(axis);
  if ((array.flags() & py::array::c_style) == 0) fail_layout();
  writable_ = array.writeable();
  address_ = const_cast<void*>(array.data());
}

void Array::read_paddle(py::handle object) {
  is_paddle_ = true;
  const PaddleNames& names = PaddleNames::instance();
  if (names.has_devices && !py::cast<bool>(object.attr(names.place).attr("is_cpu_place")())) {
    throw ArgumentTypeError(std::string(name_) + ": is on " +
                            std::string(py::str(object.attr(names.place))) +
                            ", this op runs on the CPU; call .cpu()");
  }
  const py::object dtype = object.attr(names.dtype);
  const std::pair<py::handle, DType>* found = nullptr;
  for (const auto& known : names.dtypes) {
    if (known.first.is(dtype)) found = &known;
  }
  if (found == nullptr) fail_dtype(py::str(dtype));
  dtype_ = found->second;
  const py::object shape = object.attr(names.shape);
  const Py_ssize_t ndim = PySequence_Size(shape.ptr());
  if (ndim < 0) throw py::error_already_set();
  set_ndim(ndim);
  for (int axis = 0; axis < ndim_; ++axis) {
    shape_[axis] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(shape.ptr(), axis));
  }
  if (!object.attr(names.is_contiguous)().is(py::handle(Py_True))) fail_layout();
  if (num_elements() > 0) address_ = address_of(object, names);
}

py::object Array::new_like(std::initializer_list<int64_t> shape, DType dtype,
                           void** address) const {
  if (is_paddle_) {
    const PaddleNames& names = PaddleNames::instance();
    py::list sizes(shape.size());
    bool is_empty = false;
    size_t axis = 0;
    for (const int64_t size : shape) {
      sizes[axis++] = size;
      is_empty = is_empty || size == 0;
    }
    py::object tensor = names.empty(sizes, names.object_of(dtype), names.cpu_place);
    *address = is_empty ? nullptr : address_of(tensor, names);
    return tensor;
  }
  py::array array{numpy_dtype(dtype), std::vector<py::ssize_t>(shape)};
  *address = array.mutable_data();
  return array;
}

}  // namespace fdspec
