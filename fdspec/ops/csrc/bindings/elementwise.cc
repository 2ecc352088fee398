// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "bindings/array.h"
#include "bindings/registry.h"
#include "elementwise/rms_norm.h"
#include "elementwise/rope.h"
#include "elementwise/swiglu.h"

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

void expect_positions(const int32_t* positions, int64_t rows, int64_t max_positions) {
  for (int64_t row = 0; row < rows; ++row) {
    if (positions[row] >= 0 && positions[row] < max_positions) continue;
    throw py::value_error("positions: " + std::to_string(positions[row]) + " at row " +
                          std::to_string(row) + " is outside the tables, 0 .. " +
                          std::to_string(max_positions - 1));
  }
}

py::tuple bind_rope(py::handle query, py::handle key, py::handle positions, py::handle cos,
                    py::handle sin) {
  const Array query_array(query, "query"), key_array(key, "key"), cos_array(cos, "cos");
  query_array.expect_ndim(3);
  RopeArgs args;
  args.rows = query_array.size(0);
  args.heads = query_array.size(1);
  const int64_t dim = query_array.size(2);
  if (dim % 2 != 0) {
    throw py::value_error("query: the head size must be even, got " + query_array.describe());
  }
  args.half = dim / 2;
  args.x = query_array.data<float>();
  args.positions = input<int32_t>(Array(positions, "positions"), {args.rows});
  args.cos = input<float>(cos_array, {kAnySize, args.half});
  args.sin = input<float>(Array(sin, "sin"), {cos_array.size(0), args.half});
  expect_positions(args.positions, args.rows, cos_array.size(0));
  RopeArgs key_args = args;
  key_args.x = input<float>(key_array, {args.rows, kAnySize, dim});
  key_args.heads = key_array.size(1);

  py::object query_out = query_array.new_like({args.rows, args.heads, dim});
  py::object key_out = query_array.new_like({args.rows, key_args.heads, dim});
  args.out = Array(query_out, "query_out").mutable_data<float>();
  key_args.out = Array(key_out, "key_out").mutable_data<float>();
  {
    const py::gil_scoped_release release;
    run_rope(args, key_args);
  }
  return py::make_tuple(query_out, key_out);
}

py::object bind_swiglu(py::handle gate_up) {
  const Array array(gate_up, "gate_up");
  array.expect_ndim(2);
  if (array.size(1) % 2 != 0) {
    throw py::value_error("gate_up: needs an even number of columns, got " + array.describe());
  }
  SwigluArgs args;
  args.rows = array.size(0);
  args.dim = array.size(1) / 2;
  args.gate_up = array.data<float>();
  py::object out = array.new_like({args.rows, args.dim});
  args.out = Array(out, "out").mutable_data<float>();
  {
    const py::gil_scoped_release release;
    run_swiglu(args);
  }
  return out;
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(elementwise) {
  module.def("rms_norm", &fdspec::bind_rms_norm);
  module.def("rope", &fdspec::bind_rope);
  module.def("swiglu", &fdspec::bind_swiglu);
}
