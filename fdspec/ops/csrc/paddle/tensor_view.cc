// SPDX-License-Identifier: Apache-2.0
#include "paddle/tensor_view.h"

#include <string>

#include "paddle/common/enforce.h"

namespace fdspec {
namespace {

bool dtype_from(paddle::DataType type, DType* dtype) {
  switch (type) {
    case paddle::DataType::FLOAT32:
      *dtype = DType::kFloat32;
      return true;
    case paddle::DataType::BFLOAT16:
      *dtype = DType::kBFloat16;
      return true;
    case paddle::DataType::INT8:
      *dtype = DType::kInt8;
      return true;
    case paddle::DataType::UINT8:
      *dtype = DType::kUInt8;
      return true;
    case paddle::DataType::INT32:
      *dtype = DType::kInt32;
      return true;
    case paddle::DataType::INT64:
      *dtype = DType::kInt64;
      return true;
    default:
      return false;
  }
}

}  // namespace

TensorView::TensorView(const paddle::Tensor& tensor, const char* name, Signedness signedness)
    : ArrayView(name) {
  if (!tensor.is_cpu()) {
    throw ArgumentTypeError(std::string(name) + ": this op runs on the CPU; call .cpu()");
  }
  if (!dtype_from(tensor.dtype(), &dtype_)) fail_dtype(phi::DataTypeToString(tensor.dtype()));
  if (signedness == Signedness::kUnsigned) {
    if (dtype_ == DType::kInt32) dtype_ = DType::kUInt32;
    if (dtype_ == DType::kInt64) dtype_ = DType::kUInt64;
  }
  const std::vector<int64_t> shape = tensor.shape();
  set_ndim(static_cast<int64_t>(shape.size()));
  for (int axis = 0; axis < ndim_; ++axis) shape_[axis] = shape[static_cast<size_t>(axis)];
  if (!tensor.is_contiguous()) fail_layout();
  if (num_elements() > 0) address_ = const_cast<void*>(tensor.data());
}

void throw_to_paddle(const ArgumentError& error) {
  if (dynamic_cast<const ArgumentTypeError*>(&error) != nullptr) {
    PADDLE_THROW(common::errors::InvalidType("%s", error.what()));
  }
  PADDLE_THROW(common::errors::InvalidArgument("%s", error.what()));
}

}  // namespace fdspec
