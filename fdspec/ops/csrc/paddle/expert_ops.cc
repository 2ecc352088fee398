// SPDX-License-Identifier: Apache-2.0
// Registers the ops of a mixture of experts as Paddle custom ops. A packed weight is its bytes and
// a list: bits, group size, has a minimum, float activations, inputs, outputs.
#include "common/workspace.h"
#include "experts/arguments.h"
#include "linear/arguments.h"
#include "paddle/tensor_view.h"

namespace fdspec {
namespace {

using paddle::DataType;
using paddle::Tensor;

std::vector<Tensor> RouteExperts(const Tensor& logits, const paddle::optional<Tensor>& bias,
                                 int64_t num_chosen, bool is_normalized, float smallest_sum) {
  RouteArgs args = route_args(TensorView(logits, "logits"), OptionalTensorView(bias, "bias").view(),
                              num_chosen, is_normalized, smallest_sum);
  const Shape shape{args.rows, num_chosen};
  Tensor experts = new_tensor(logits, shape, DataType::INT32, &args.experts);
  Tensor factors = new_tensor(logits, shape, DataType::FLOAT32, &args.factors);
  run_route_experts(args);
  return {experts, factors};
}

StackedMatrix stacked(const ArrayView& data, const std::vector<int64_t>& weight) {
  if (weight.size() != 6) throw ArgumentError("layout: expected 6 numbers");
  return {data, packed_layout(weight[0], weight[1], weight[2] != 0, weight[4], weight[5]),
          weight[3] != 0};
}

std::vector<Tensor> ExpertMlp(const Tensor& x, const Tensor& experts, const Tensor& factors,
                              const Tensor& gate_up, const Tensor& down,
                              const paddle::optional<Tensor>& residual,
                              const std::vector<int64_t>& gate_up_layout,
                              const std::vector<int64_t>& down_layout) {
  const TensorView gate_up_view(gate_up, "gate_up"), down_view(down, "down");
  ExpertsArgs args = experts_args(
      TensorView(x, "x"), TensorView(experts, "experts"), TensorView(factors, "factors"),
      stacked(gate_up_view, gate_up_layout), stacked(down_view, down_layout),
      OptionalTensorView(residual, "residual").view());
  Tensor out = new_tensor(x, x.shape(), DataType::FLOAT32, &args.out);
  run_all_experts(args);
  return {out};
}

Shapes RouteShape(const Shape& logits, const paddle::optional<Shape>&, int64_t num_chosen, bool,
                  float) {
  return {{logits[0], num_chosen}, {logits[0], num_chosen}};
}
Types RouteType(DataType, const paddle::optional<DataType>&) {
  return {DataType::INT32, DataType::FLOAT32};
}
Shapes ExpertShape(const Shape& x, const Shape&, const Shape&, const Shape&, const Shape&,
                   const paddle::optional<Shape>&, const std::vector<int64_t>&,
                   const std::vector<int64_t>&) {
  return {x};
}
Types ExpertType(DataType, DataType, DataType, DataType, DataType,
                 const paddle::optional<DataType>&) {
  return {DataType::FLOAT32};
}

}  // namespace
}  // namespace fdspec

PD_BUILD_OP(fdspec_route_experts)
    .Inputs({"logits", paddle::Optional("bias")})
    .Outputs({"experts", "factors"})
    .Attrs({"num_chosen: int64_t", "is_normalized: bool", "smallest_sum: float"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::RouteExperts>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::RouteShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::RouteType));

PD_BUILD_OP(fdspec_expert_mlp)
    .Inputs({"x", "experts", "factors", "gate_up", "down", paddle::Optional("residual")})
    .Outputs({"out"})
    .Attrs({"gate_up_layout: std::vector<int64_t>", "down_layout: std::vector<int64_t>"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::ExpertMlp>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::ExpertShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::ExpertType));
