// SPDX-License-Identifier: Apache-2.0
// Registers the ops of a decoder layer as Paddle custom ops: fdspec_<op>, with the arguments of the
// Python function of the same name. A packed weight is its bytes and the attributes of its layout.
#include "attention/arguments.h"
#include "common/workspace.h"
#include "elementwise/arguments.h"
#include "linear/arguments.h"
#include "paddle/tensor_view.h"

namespace fdspec {
namespace {

using paddle::DataType;
using paddle::Tensor;

std::vector<Tensor> RmsNorm(const Tensor& x, const Tensor& weight, float epsilon) {
  RmsNormArgs args = rms_norm_args(TensorView(x, "x"), TensorView(weight, "weight"), epsilon);
  Tensor out = new_tensor(x, x.shape(), DataType::FLOAT32, &args.out);
  run_rms_norm(args);
  return {out};
}

std::vector<Tensor> Rope(const Tensor& query, const Tensor& key, const Tensor& positions,
                         const Tensor& cos, const Tensor& sin) {
  RopePair args =
      rope_args(TensorView(query, "query"), TensorView(key, "key"),
                TensorView(positions, "positions"), TensorView(cos, "cos"), TensorView(sin, "sin"));
  Tensor query_out = new_tensor(query, query.shape(), DataType::FLOAT32, &args.query.out);
  Tensor key_out = new_tensor(query, key.shape(), DataType::FLOAT32, &args.key.out);
  run_rope(args.query, args.key);
  return {query_out, key_out};
}

std::vector<Tensor> Swiglu(const Tensor& gate_up) {
  SwigluArgs args = swiglu_args(TensorView(gate_up, "gate_up"));
  Tensor out = new_tensor(gate_up, {args.rows, args.dim}, DataType::FLOAT32, &args.out);
  run_swiglu(args);
  return {out};
}

std::vector<Tensor> WeightOnlyLinear(const Tensor& x, const Tensor& weight,
                                     const paddle::optional<Tensor>& bias,
                                     const paddle::optional<Tensor>& residual, int64_t bits,
                                     int64_t group_size, bool has_minimum, bool float_activations,
                                     int64_t in_features, int64_t out_features) {
  const PackedLayout layout =
      packed_layout(bits, group_size, has_minimum, in_features, out_features);
  LinearArgs args = linear_args(TensorView(x, "x"), TensorView(weight, "weight"), layout,
                                float_activations, OptionalTensorView(bias, "bias").view(),
                                OptionalTensorView(residual, "residual").view());
  Tensor out = new_tensor(x, {args.rows, out_features}, DataType::FLOAT32, &args.out);
  const int num_slices = linear_slices(args);
  run_linear(args, num_slices, thread_workspace(linear_workspace_bytes(args, num_slices)));
  return {out};
}

std::vector<Tensor> Embedding(const Tensor& token_ids, const Tensor& weight, int64_t bits,
                              int64_t group_size, bool has_minimum, int64_t in_features,
                              int64_t out_features) {
  const PackedLayout layout =
      packed_layout(bits, group_size, has_minimum, in_features, out_features);
  EmbeddingArgs args =
      embedding_args(TensorView(token_ids, "token_ids"), TensorView(weight, "weight"), layout);
  Tensor out = new_tensor(token_ids, {args.rows, in_features}, DataType::FLOAT32, &args.out);
  run_embedding(args);
  return {out};
}

std::vector<Tensor> QuantizeWeight(const Tensor& weight, int64_t bits, int64_t group_size,
                                   bool has_minimum) {
  const TensorView view(weight, "weight");
  view.expect_ndim(2);
  const PackedLayout layout =
      packed_layout(bits, group_size, has_minimum, view.size(1), view.size(0));
  const float* values = view.data<float>();
  uint8_t* packed = nullptr;
  Tensor out = new_tensor(weight, {layout.total_bytes()}, DataType::UINT8, &packed);
  quantize_matrix(layout, values, packed);
  return {out};
}

std::vector<Tensor> DequantizeWeight(const Tensor& weight, int64_t bits, int64_t group_size,
                                     bool has_minimum, int64_t in_features, int64_t out_features) {
  const PackedLayout layout =
      packed_layout(bits, group_size, has_minimum, in_features, out_features);
  const uint8_t* packed = packed_data(TensorView(weight, "weight"), layout);
  float* values = nullptr;
  Tensor out = new_tensor(weight, {out_features, in_features}, DataType::FLOAT32, &values);
  dequantize_matrix(layout, packed, values);
  return {out};
}

void AppendPagedKv(const Tensor& key, const Tensor& value, Tensor& key_cache, Tensor& value_cache,
                   const Tensor& slots) {
  run_append_paged_kv(append_args(
      TensorView(key, "key"), TensorView(value, "value"), TensorView(key_cache, "key_cache"),
      TensorView(value_cache, "value_cache"), TensorView(slots, "slots")));
}

void CompactKv(Tensor& key_cache, Tensor& value_cache, const Tensor& source_slots,
               const Tensor& destination_slots) {
  run_compact_kv(compact_args(TensorView(key_cache, "key_cache"),
                              TensorView(value_cache, "value_cache"),
                              TensorView(source_slots, "source_slots"),
                              TensorView(destination_slots, "destination_slots")));
}

std::vector<Tensor> CascadeAppendAttention(const Tensor& query, const Tensor& key_cache,
                                           const Tensor& value_cache, const Tensor& block_table,
                                           const Tensor& row_splits, const Tensor& context_lens,
                                           const Tensor& parents, float scale) {
  AttentionArgs args =
      attention_args(TensorView(query, "query"), TensorView(key_cache, "key_cache"),
                     TensorView(value_cache, "value_cache"), TensorView(block_table, "block_table"),
                     TensorView(row_splits, "row_splits"), TensorView(context_lens, "context_lens"),
                     TensorView(parents, "parents"), scale);
  const int64_t width = int64_t{args.shape.num_heads} * args.shape.head_dim;
  Tensor out = new_tensor(query, {args.rows.num_rows, width}, DataType::FLOAT32, &args.out);
  run_unplanned_attention(args);
  return {out};
}

std::vector<Tensor> MergeAttentionStates(const Tensor& output_a, const Tensor& lse_a,
                                         const Tensor& output_b, const Tensor& lse_b) {
  MergeStatesArgs args =
      merge_states_args(TensorView(output_a, "output_a"), TensorView(lse_a, "lse_a"),
                        TensorView(output_b, "output_b"), TensorView(lse_b, "lse_b"));
  Tensor out = new_tensor(output_a, output_a.shape(), DataType::FLOAT32, &args.out);
  Tensor lse = new_tensor(output_a, lse_a.shape(), DataType::FLOAT32, &args.lse);
  run_merge_attention_states(args);
  return {out, lse};
}

Shapes LinearShape(const Shape& x, const Shape&, const paddle::optional<Shape>&,
                   const paddle::optional<Shape>&, int64_t, int64_t, bool, bool, int64_t,
                   int64_t out_features) {
  return {{x[0], out_features}};
}
Types LinearType(DataType, DataType, const paddle::optional<DataType>&,
                 const paddle::optional<DataType>&) {
  return {DataType::FLOAT32};
}
Shapes EmbeddingShape(const Shape& token_ids, const Shape&, int64_t, int64_t, bool,
                      int64_t in_features, int64_t) {
  return {{token_ids[0], in_features}};
}
Shapes QuantizeShape(const Shape& weight, int64_t bits, int64_t group_size, bool has_minimum) {
  return {{packed_layout(bits, group_size, has_minimum, weight[1], weight[0]).total_bytes()}};
}
Types QuantizeType(DataType) { return {DataType::UINT8}; }
Shapes DequantizeShape(const Shape&, int64_t, int64_t, bool, int64_t in_features,
                       int64_t out_features) {
  return {{out_features, in_features}};
}
Shapes RmsNormShape(const Shape& x, const Shape&) { return {x}; }
Types OneFloat(DataType) { return {DataType::FLOAT32}; }
Types OneFloatOfTwo(DataType, DataType) { return {DataType::FLOAT32}; }
Shapes SwigluShape(const Shape& gate_up) { return {{gate_up[0], gate_up[1] / 2}}; }
Shapes RopeShape(const Shape& query, const Shape& key, const Shape&, const Shape&, const Shape&) {
  return {query, key};
}
Types RopeType(DataType query, DataType key, DataType, DataType, DataType) { return {query, key}; }
Shapes AttentionShapeOf(const Shape& query, const Shape&, const Shape&, const Shape&, const Shape&,
                        const Shape&, const Shape&) {
  return {{query[0], query[1] * query[2]}};
}
Types AttentionType(DataType query, DataType, DataType, DataType, DataType, DataType, DataType) {
  return {query};
}
Shapes MergeShape(const Shape& output_a, const Shape& lse_a, const Shape&, const Shape&) {
  return {output_a, lse_a};
}
Types MergeType(DataType output_a, DataType lse_a, DataType, DataType) { return {output_a, lse_a}; }

}  // namespace
}  // namespace fdspec

PD_BUILD_OP(fdspec_rms_norm)
    .Inputs({"x", "weight"})
    .Outputs({"out"})
    .Attrs({"epsilon: float"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::RmsNorm>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::RmsNormShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::OneFloatOfTwo));

PD_BUILD_OP(fdspec_rope)
    .Inputs({"query", "key", "positions", "cos", "sin"})
    .Outputs({"query_out", "key_out"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::Rope>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::RopeShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::RopeType));

PD_BUILD_OP(fdspec_swiglu)
    .Inputs({"gate_up"})
    .Outputs({"out"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::Swiglu>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::SwigluShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::OneFloat));

PD_BUILD_OP(fdspec_weight_only_linear)
    .Inputs({"x", "weight", paddle::Optional("bias"), paddle::Optional("residual")})
    .Outputs({"out"})
    .Attrs({"bits: int64_t", "group_size: int64_t", "has_minimum: bool", "float_activations: bool",
            "in_features: int64_t", "out_features: int64_t"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::WeightOnlyLinear>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::LinearShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::LinearType));

PD_BUILD_OP(fdspec_embedding)
    .Inputs({"token_ids", "weight"})
    .Outputs({"out"})
    .Attrs({"bits: int64_t", "group_size: int64_t", "has_minimum: bool", "in_features: int64_t",
            "out_features: int64_t"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::Embedding>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::EmbeddingShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::OneFloatOfTwo));

PD_BUILD_OP(fdspec_quantize_weight)
    .Inputs({"weight"})
    .Outputs({"packed"})
    .Attrs({"bits: int64_t", "group_size: int64_t", "has_minimum: bool"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::QuantizeWeight>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::QuantizeShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::QuantizeType));

PD_BUILD_OP(fdspec_dequantize_weight)
    .Inputs({"weight"})
    .Outputs({"values"})
    .Attrs({"bits: int64_t", "group_size: int64_t", "has_minimum: bool", "in_features: int64_t",
            "out_features: int64_t"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::DequantizeWeight>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::DequantizeShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::OneFloat));

PD_BUILD_OP(fdspec_append_paged_kv)
    .Inputs({"key", "value", "key_cache", "value_cache", "slots"})
    .Outputs({"key_cache_out", "value_cache_out"})
    .SetInplaceMap({{"key_cache", "key_cache_out"}, {"value_cache", "value_cache_out"}})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::AppendPagedKv>::call));

PD_BUILD_OP(fdspec_compact_kv)
    .Inputs({"key_cache", "value_cache", "source_slots", "destination_slots"})
    .Outputs({"key_cache_out", "value_cache_out"})
    .SetInplaceMap({{"key_cache", "key_cache_out"}, {"value_cache", "value_cache_out"}})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::CompactKv>::call));

PD_BUILD_OP(fdspec_cascade_append_attention)
    .Inputs({"query", "key_cache", "value_cache", "block_table", "row_splits", "context_lens",
             "parents"})
    .Outputs({"out"})
    .Attrs({"scale: float"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::CascadeAppendAttention>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::AttentionShapeOf))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::AttentionType));

PD_BUILD_OP(fdspec_merge_attention_states)
    .Inputs({"output_a", "lse_a", "output_b", "lse_b"})
    .Outputs({"output", "lse"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::MergeAttentionStates>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::MergeShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::MergeType));
