// SPDX-License-Identifier: Apache-2.0
#include "bindings/array.h"

#include <pybind11/numpy.h>

#include <array>
#include <utility>
#include <vector>

namespace fdspec {
namespace {

struct DTypeInfo {
  DType dtype;
  const char* name;
  char numpy_kind;
  int num_bytes;
};

constexpr DTypeInfo kDTypes[] = {
    {DType::kFloat32, "float32", 'f', 4}, {DType::kBFloat16, "bfloat16", 'u', 2},
    {DType::kFloat16, "float16", 'f', 2}, {DType::kInt8, "int8", 'i', 1},
    {DType::kUInt8, "uint8", 'u', 1},     {DType::kInt32, "int32", 'i', 4},
    {DType::kUInt32, "uint32", 'u', 4},   {DType::kInt64, "int64", 'i', 8},
    {DType::kUInt64, "uint64", 'u', 8},   {DType::kBool, "bool", 'b', 1},
};

const DTypeInfo& info_of(DType dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype == dtype) return info;
  }
  return kDTypes[0];
}

std::string type_name(py::handle object) {
  return py::str(py::type::handle_of(object).attr("__name__"));
}

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
    has_devices = py::cast<bool>(paddle.attr("is_compiled_with_cuda")());
    // The operator itself: paddle.empty() spends three times as long on its arguments.
    empty = paddle.attr("_C_ops").attr("empty");
    cpu_place = paddle.attr("CPUPlace")();
    for (const DTypeInfo& info : kDTypes) {
      if (!py::hasattr(paddle, info.name)) continue;
      dtypes.emplace_back(py::object(paddle.attr(info.name)).release(), info.dtype);
    }
    tensor_types.push_back(py::object(py::reinterpret_borrow<py::object>(type)).release());
    return true;
  }

  DType dtype_of(py::handle tensor, const char* name) {
    const py::object value = tensor.attr(dtype);
    for (const auto& [known, result] : dtypes) {
      if (known.is(value)) return result;
    }
    throw py::type_error(std::string(name) + ": unsupported dtype " + std::string(py::str(value)));
  }

  py::handle object_of(DType dtype) const {
    for (const auto& [object, value] : dtypes) {
      if (value == dtype) return object;
    }
    return py::none();
  }
};

}  // namespace

const char* dtype_name(DType dtype) { return info_of(dtype).name; }

Array::Array(py::handle object, const char* name) : name_(name) {
  if (py::isinstance<py::array>(object)) {
    read_numpy(object);
  } else if (PaddleNames::instance().is_tensor(object)) {
    read_paddle(object);
  } else {
    throw py::type_error(std::string(name) +
                         ": expected a numpy array or a paddle CPU tensor, got " +
                         type_name(object));
  }
}

void Array::read_numpy(py::handle object) {
  const auto array = py::reinterpret_borrow<py::array>(object);
  const py::dtype dtype = array.dtype();
  const DTypeInfo* found = nullptr;
  for (const DTypeInfo& info : kDTypes) {
    if (info.numpy_kind == dtype.kind() && info.num_bytes == dtype.itemsize()) found = &info;
  }
  if (found == nullptr) {
    throw py::type_error(std::string(name_) + ": unsupported dtype " + std::string(py::str(dtype)));
  }
  dtype_ = found->dtype;
  ndim_ = static_cast<int>(array.ndim());
  if (ndim_ > kMaxDims) {
    throw py::value_error(std::string(name_) + ": has " + std::to_string(ndim_) +
                          " dimensions, at most " + std::to_string(kMaxDims) + " are supported");
  }
  for (int axis = 0; axis < ndim_; ++axis) shape_[axis] = array.shape(axis);
  if ((array.flags() & py::array::c_style) == 0) fail_layout();
  writable_ = array.writeable();
  address_ = const_cast<void*>(array.data());
}

void Array::read_paddle(py::handle object) {
  is_paddle_ = true;
  PaddleNames& names = PaddleNames::instance();
  if (names.has_devices && !py::cast<bool>(object.attr(names.place).attr("is_cpu_place")())) {
    throw py::type_error(std::string(name_) + ": is on " +
                         std::string(py::str(object.attr(names.place))) +
                         ", this op runs on the CPU; call .cpu()");
  }
  dtype_ = names.dtype_of(object, name_);
  const py::object shape = object.attr(names.shape);
  const Py_ssize_t ndim = PySequence_Size(shape.ptr());
  if (ndim < 0) throw py::error_already_set();
  if (ndim > kMaxDims) {
    throw py::value_error(std::string(name_) + ": has " + std::to_string(ndim) +
                          " dimensions, at most " + std::to_string(kMaxDims) + " are supported");
  }
  ndim_ = static_cast<int>(ndim);
  for (int axis = 0; axis < ndim_; ++axis) {
    shape_[axis] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(shape.ptr(), axis));
  }
  if (!object.attr(names.is_contiguous)().is(py::handle(Py_True))) fail_layout();
  if (num_elements() > 0) {
    address_ = PyLong_AsVoidPtr(object.attr(names.data_ptr)().ptr());
  }
}

int64_t Array::num_elements() const {
  int64_t count = 1;
  for (int axis = 0; axis < ndim_; ++axis) count *= shape_[axis];
  return count;
}

const Array& Array::expect_dtype(std::initializer_list<DType> allowed) const {
  for (const DType dtype : allowed) {
    if (dtype == dtype_) return *this;
  }
  std::string text;
  for (const DType dtype : allowed)
    text += (text.empty() ? "" : " or ") + std::string(dtype_name(dtype));
  throw py::type_error(std::string(name_) + ": expected dtype " + text + ", got " +
                       dtype_name(dtype_));
}

const Array& Array::expect_ndim(int ndim) const {
  if (ndim == ndim_) return *this;
  throw py::value_error(std::string(name_) + ": expected " + std::to_string(ndim) +
                        " dimensions, got " + describe());
}

const Array& Array::expect_shape(std::initializer_list<int64_t> shape) const {
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
  throw py::value_error(std::string(name_) + ": expected shape [" + text + "], got " + describe());
}

const Array& Array::expect_writable() const {
  if (!writable_) throw py::value_error(std::string(name_) + ": is read-only");
  return *this;
}

py::object Array::new_like(std::initializer_list<int64_t> shape, DType dtype) const {
  if (is_paddle_) {
    const PaddleNames& names = PaddleNames::instance();
    py::list sizes(shape.size());
    size_t axis = 0;
    for (const int64_t size : shape) sizes[axis++] = size;
    return names.empty(sizes, names.object_of(dtype), names.cpu_place);
  }
  const DTypeInfo& info = info_of(dtype);
  const std::string code = info.numpy_kind + std::to_string(info.num_bytes);
  return py::array(py::dtype(code), std::vector<py::ssize_t>(shape));
}

std::string Array::describe() const {
  std::string text;
  for (int axis = 0; axis < ndim_; ++axis) {
    text += (axis ? ", " : "") + std::to_string(shape_[axis]);
  }
  return "[" + text + "] " + dtype_name(dtype_);
}

void Array::fail_layout() const {
  throw py::value_error(std::string(name_) +
                        ": must be C-contiguous (use numpy.ascontiguousarray or .contiguous())");
}

}  // namespace fdspec
