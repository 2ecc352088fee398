// SPDX-License-Identifier: Apache-2.0
// Paddle tensors as arguments of ops, for the custom-op registration. The ops themselves and their
// checks are in the core library, which this one links to.
#pragma once

#include "common/array_view.h"
#include "paddle/extension.h"

namespace fdspec {

// Shapes and dtypes as the functions that infer them pass them.
using Shape = std::vector<int64_t>;
using Shapes = std::vector<Shape>;
using Types = std::vector<paddle::DataType>;

// Paddle has no uint32 and uint64: their bits come as int32 and int64.
enum class Signedness { kAsIs, kUnsigned };

class TensorView : public ArrayView {
 public:
  // Throws if the tensor is not on the CPU or not C-contiguous.
  TensorView(const paddle::Tensor& tensor, const char* name,
             Signedness signedness = Signedness::kAsIs);
};

// view() is nullptr if the tensor is absent.
class OptionalTensorView {
 public:
  OptionalTensorView(const paddle::optional<paddle::Tensor>& tensor, const char* name,
                     Signedness signedness = Signedness::kAsIs)
      : is_present_(static_cast<bool>(tensor)), view_(name) {
    if (is_present_) view_ = TensorView(*tensor, name, signedness);
  }
  const ArrayView* view() const { return is_present_ ? &view_ : nullptr; }

 private:
  bool is_present_;
  ArrayView view_;
};

// Raises a caller's mistake as Paddle's own error: ValueError, or TypeError for a wrong dtype.
[[noreturn]] void throw_to_paddle(const ArgumentError& error);

// Checked<&Fn>::call is Fn with its ArgumentErrors raised so.
template <auto kFunction>
struct Checked;
template <class Result, class... Args, Result (*kFunction)(Args...)>
struct Checked<kFunction> {
  static Result call(Args... args) {
    try {
      return kFunction(args...);
    } catch (const ArgumentError& error) {
      throw_to_paddle(error);
    }
  }
};

// A new tensor like `like`, and where to write.
template <class T>
paddle::Tensor new_tensor(const paddle::Tensor& like, const Shape& shape, paddle::DataType dtype,
                          T** address) {
  paddle::Tensor tensor = paddle::empty(shape, dtype, like.place());
  *address = static_cast<T*>(tensor.data());
  return tensor;
}

}  // namespace fdspec
