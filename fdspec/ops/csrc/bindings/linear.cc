// SPDX-License-Identifier: Apache-2.0
#include "linear/linear.h"

#include "bindings/array.h"
#include "bindings/registry.h"
#include "common/workspace.h"
#include "linear/arguments.h"

namespace fdspec {
namespace {

constexpr const char* kDataName = "weight.data";

py::object bind_linear(py::handle x, py::handle data, const PackedLayout& layout,
                       bool float_activations, py::handle bias, py::handle residual) {
  const Array x_array(x, "x");
  LinearArgs args =
      linear_args(x_array, Array(data, kDataName), layout, float_activations,
                  OptionalArray(bias, "bias").view(), OptionalArray(residual, "residual").view());
  py::object out = new_output(x_array, {args.rows, layout.out_features}, &args.out);
  without_gil([&] {
    const int num_slices = linear_slices(args);
    run_linear(args, num_slices, thread_workspace(linear_workspace_bytes(args, num_slices)));
  });
  return out;
}

py::object bind_embedding(py::handle token_ids, py::handle data, const PackedLayout& layout) {
  const Array ids(token_ids, "token_ids");
  EmbeddingArgs args = embedding_args(ids, Array(data, kDataName), layout);
  py::object out = new_output(ids, {args.rows, layout.in_features}, &args.out);
  without_gil([&] { run_embedding(args); });
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
  const float* minimum_data =
      optional_input<float>(OptionalArray(minima, "minima").view(), {out_features, num_groups});
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
  const uint8_t* data = packed_data(Array(packed, kDataName), layout);
  const py::gil_scoped_release release;
  unpack_matrix(layout, data, code_data, scale_data, minimum_data);
}

void bind_dequantize(py::handle packed, const PackedLayout& layout, py::handle weight) {
  float* out = output<float>(Array(weight, "weight"), {layout.out_features, layout.in_features});
  const uint8_t* data = packed_data(Array(packed, kDataName), layout);
  const py::gil_scoped_release release;
  dequantize_matrix(layout, data, out);
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(linear) {
  using fdspec::PackedLayout;
  namespace py = pybind11;
  py::class_<PackedLayout>(module, "PackedLayout")
      .def(py::init(&fdspec::packed_layout))
      .def_property_readonly("num_groups", [](const PackedLayout& l) { return l.num_groups(); })
      .def_property_readonly("total_bytes", [](const PackedLayout& l) { return l.total_bytes(); });
  module.def("weight_only_linear", &fdspec::bind_linear);
  module.def("embedding", &fdspec::bind_embedding);
  module.def("quantize_weight", &fdspec::bind_quantize);
  module.def("pack_weight", &fdspec::bind_pack);
  module.def("unpack_weight", &fdspec::bind_unpack);
  module.def("dequantize_weight", &fdspec::bind_dequantize);
}
