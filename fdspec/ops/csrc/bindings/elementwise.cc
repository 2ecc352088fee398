// SPDX-License-Identifier: Apache-2.0
#include "bindings/array.h"
#include "bindings/registry.h"
#include "elementwise/arguments.h"

namespace fdspec {
namespace {

py::object bind_rms_norm(py::handle x, py::handle weight, float epsilon) {
  const Array x_array(x, "x");
  RmsNormArgs args = rms_norm_args(x_array, Array(weight, "weight"), epsilon);
  py::object out = new_output(x_array, {args.rows, args.dim}, &args.out);
  without_gil([&] { run_rms_norm(args); });
  return out;
}

py::tuple bind_rope(py::handle query, py::handle key, py::handle positions, py::handle cos,
                    py::handle sin) {
  const Array query_array(query, "query");
  RopePair args = rope_args(query_array, Array(key, "key"), Array(positions, "positions"),
                            Array(cos, "cos"), Array(sin, "sin"));
  const int64_t rows = args.query.rows, dim = 2 * args.query.half;
  py::object query_out = new_output(query_array, {rows, args.query.heads, dim}, &args.query.out);
  py::object key_out = new_output(query_array, {rows, args.key.heads, dim}, &args.key.out);
  without_gil([&] { run_rope(args.query, args.key); });
  return py::make_tuple(query_out, key_out);
}

py::object bind_swiglu(py::handle gate_up) {
  const Array array(gate_up, "gate_up");
  SwigluArgs args = swiglu_args(array);
  py::object out = new_output(array, {args.rows, args.dim}, &args.out);
  without_gil([&] { run_swiglu(args); });
  return out;
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(elementwise) {
  module.def("rms_norm", &fdspec::bind_rms_norm);
  module.def("rope", &fdspec::bind_rope);
  module.def("swiglu", &fdspec::bind_swiglu);
}
