// SPDX-License-Identifier: Apache-2.0
#include "bindings/array.h"
#include "bindings/registry.h"
#include "experts/arguments.h"

namespace fdspec {
namespace {

py::tuple bind_route(py::handle logits, py::handle bias, int64_t num_chosen, bool is_normalized,
                     float smallest_sum) {
  const Array array(logits, "logits");
  RouteArgs args = route_args(array, OptionalArray(bias, "bias").view(), num_chosen, is_normalized,
                              smallest_sum);
  py::object experts = new_output(array, {args.rows, num_chosen}, &args.experts);
  py::object factors = new_output(array, {args.rows, num_chosen}, &args.factors);
  without_gil([&] { run_route_experts(args); });
  return py::make_tuple(experts, factors);
}

py::object bind_experts(py::handle x, py::handle experts, py::handle factors,
                        py::handle gate_up_data, const PackedLayout& gate_up, bool gate_up_float,
                        py::handle down_data, const PackedLayout& down, bool down_float,
                        py::handle residual) {
  const Array x_array(x, "x");
  const Array gate_up_array(gate_up_data, "gate_up.data"), down_array(down_data, "down.data");
  ExpertsArgs args =
      experts_args(x_array, Array(experts, "experts"), Array(factors, "factors"),
                   {gate_up_array, gate_up, gate_up_float}, {down_array, down, down_float},
                   OptionalArray(residual, "residual").view());
  py::object out = new_output(x_array, {args.rows, args.weights.hidden()}, &args.out);
  without_gil([&] { run_all_experts(args); });
  return out;
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(experts) {
  module.def("route_experts", &fdspec::bind_route);
  module.def("expert_mlp", &fdspec::bind_experts);
}
