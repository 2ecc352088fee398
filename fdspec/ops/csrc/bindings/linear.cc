// SPDX-License-Identifier: Apache-2.0
#include "linear/linear.h"

#include <string>

#include "bindings/array.h"
#include "bindings/registry.h"
#include "common/workspace.h"
#include "linear/packed_weight.h"

namespace fdspec {
namespace {

const uint8_t* packed_data(const PackedLayout& layout, py::handle data) {
  return input<uint8_t>(Array(data, "weight.data"), {layout.total_bytes()});
}

py::object bind_linear(py::handle x, py::handle data, const PackedLayout& layout,
                       bool float_activations, py::handle bias, py::handle residual) {
  const Array x_array(x, "x");
  x_array.expect_shape({kAnySize, layout.in_features});
  LinearArgs args;
  args.layout = layout;
  args.float_activations = float_activations;
  args.weight = packed_data(layout, data);
  args.rows = x_array.size(0);
  args.x = x_array.data<float>();
  args.bias = optional_input<float>(bias, "bias", {layout.out_features});
  args.residual = optional_input<float>(residual, "residual", {args.rows, layout.out_features});
  py::object out = x_array.new_like({args.rows, layout.out_features});
  args.out = Array(out, "out").mutable_data<float>();
  {
    const py::gil_scoped_release release;
    const int num_slices = linear_slices(args);
    run_linear(args, num_slices, thread_workspace(linear_workspace_bytes(args, num_slices)));
  }
  return out;
}

py::object bind_embedding(py::handle token_ids, py::handle data, const PackedLayout& layout) {
  const Array ids_array(token_ids, "token_ids");
  const int32_t* ids = input<int32_t>(ids_array, {kAnySize});
  const uint8_t* packed = packed_data(layout, data);
  const int64_t rows = ids_array.size(0);
  for (int64_t row = 0; row < rows; ++row) {
    if (ids[row] >= 0 && ids[row] < layout.out_features) continue;
    throw py::value_error("token_ids: " + std::to_string(ids[row]) + " at row " +
                          std::to_string(row) + " is outside the vocabulary, 0 .. " +
                          std::to_string(layout.out_features - 1));
  }
  py::object out = ids_array.new_like({rows, layout.in_features});
  float* values = Array(out, "out").mutable_data<float>();
  {
    const py::gil_scoped_release release;
    run_embedding(layout, packed, ids, rows, values);
  }
  return out;
}

void bind_quantize(py::handle weight, const PackedLayout& layout, py::handle packed) {
  const float* values =
      input<float>(Array(weight, "weight"), {layout.out_features, layout.in_features});
  uint8_t* out = output<uint8_t>(Array(packed, "packed"), {layout.total_bytes()});
  const py::gil_scoped_release release;
  quantize_matrix(layout, values, out);
}

void bind_pack(py::handle codes, py::handle scales, py::handle minima, const PackedLayout& layout,
               py::handle packed) {
  const int64_t out_features = layout.out_features;
  const int64_t num_groups = layout.num_groups();
  const uint8_t* code_data =
      input<uint8_t>(Array(codes, "codes"), {out_features, layout.in_features});
  const float* scale_data = input<float>(Array(scales, "scales"), {out_features, num_groups});
  const float* minimum_data = optional_input<float>(minima, "minima", {out_features, num_groups});
  uint8_t* out = output<uint8_t>(Array(packed, "packed"), {layout.total_bytes()});
  const py::gil_scoped_release release;
  pack_matrix(layout, code_data, scale_data, minimum_data, out);
}

void bind_unpack(py::handle packed, const PackedLayout& layout, py::handle codes, py::handle scales,
                 py::handle minima) {
  const int64_t out_features = layout.out_features;
  const int64_t num_groups = layout.num_groups();
  uint8_t* code_data = output<uint8_t>(Array(codes, "codes"), {out_features, layout.in_features});
  float* scale_data = output<float>(Array(scales, "scales"), {out_features, num_groups});
  float* minimum_data = minima.is_none()
                            ? nullptr
                            : output<float>(Array(minima, "minima"), {out_features, num_groups});
  const uint8_t* data = packed_data(layout, packed);
  const py::gil_scoped_release release;
  unpack_matrix(layout, data, code_data, scale_data, minimum_data);
}

void bind_dequantize(py::handle packed, const PackedLayout& layout, py::handle weight) {
  float* out = output<float>(Array(weight, "weight"), {layout.out_features, layout.in_features});
  const uint8_t* data = packed_data(layout, packed);
  const py::gil_scoped_release release;
  dequantize_matrix(layout, data, out);
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(linear) {
  using fdspec::PackedLayout;
  namespace py = pybind11;
  py::class_<PackedLayout>(module, "PackedLayout")
      .def(py::init([](int bits, int group_size, bool has_minimum, int64_t in_features,
                       int64_t out_features) {
        return PackedLayout{bits, group_size, has_minimum, in_features, out_features};
      }))
      .def_property_readonly("num_groups", [](const PackedLayout& l) { return l.num_groups(); })
      .def_property_readonly("total_bytes", [](const PackedLayout& l) { return l.total_bytes(); });
  module.def("weight_only_linear", &fdspec::bind_linear);
  module.def("embedding", &fdspec::bind_embedding);
  module.def("quantize_weight", &fdspec::bind_quantize);
  module.def("pack_weight", &fdspec::bind_pack);
  module.def("unpack_weight", &fdspec::bind_unpack);
  module.def("dequantize_weight", &fdspec::bind_dequantize);
}
