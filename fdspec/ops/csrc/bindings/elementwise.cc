// SPDX-License-Identifier: Apache-2.0
#include "bindings/array.h"
#include "bindings/registry.h"
#include "elementwise/rms_norm.h"

namespace fdspec {
namespace {

py::object bind_rms_norm(py::handle x, py::handle weight, float epsilon) {
  const Array x_array(x, "x");
  x_array.expect_ndim(2);
  RmsNormArgs args;
  args.rows = x_array.size(0);
  args.dim = x_array.size(1);
  args.x = x_array.data<float>();
  args.weight = input<float>(Array(weight, "weight"), {args.dim});
  args.epsilon = epsilon;
  py::object out = x_array.new_like({args.rows, args.dim});
  args.out = Array(out, "out").mutable_data<float>();
  {
    const py::gil_scoped_release release;
    run_rms_norm(args);
  }
  return out;
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(elementwise) { module.def("rms_norm", &fdspec::bind_rms_norm); }
