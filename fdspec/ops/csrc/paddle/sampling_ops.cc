// SPDX-License-Identifier: Apache-2.0
// Registers sampling, drafting and verification as Paddle custom ops: fdspec_<op>. The fields of
// RowParams are inputs of their own; uint32 and uint64 fields travel as int32 and int64.
#include <cstring>

#include "common/workspace.h"
#include "paddle/tensor_view.h"
#include "sampling/arguments.h"
#include "speculation/batch.h"

namespace fdspec {
namespace {

using paddle::DataType;
using paddle::Tensor;

template <class Args, class Run>
void run_with_workspace(Args* args, Run run) {
  const int num_slices = sampling_slices(args->rows, args->vocab);
  args->workspace =
      static_cast<char*>(thread_workspace(num_slices * sampling_workspace_bytes(args->vocab)));
  run(*args, num_slices);
}

// Makes the views of RowParams' fields and hands them to use(views).
template <class Use>
auto with_params(const std::vector<Tensor>& fields, const paddle::optional<Tensor>& mask, Use use) {
  constexpr size_t kNumFields = 17;
  if (fields.size() != kNumFields) {
    throw ArgumentError("params: expected 17 tensors, the fields of RowParams but for the mask");
  }
  size_t next = 0;
  const auto take = [&](const char* name, Signedness signedness = Signedness::kAsIs) {
    return TensorView(fields[next++], name, signedness);
  };
  const OptionalTensorView mask_view(mask, "mask", Signedness::kUnsigned);
  // Braces: the fields are taken in order.
  const SamplingViews views{take("temperature"),
                            take("top_k"),
                            take("top_p"),
                            take("min_p"),
                            take("seed", Signedness::kUnsigned),
                            take("choice", Signedness::kUnsigned),
                            take("position", Signedness::kUnsigned),
                            take("repetition_penalty"),
                            take("presence_penalty"),
                            take("frequency_penalty"),
                            take("count_splits"),
                            take("count_ids"),
                            take("output_counts"),
                            take("in_prompt"),
                            take("bias_splits"),
                            take("bias_ids"),
                            take("bias_values"),
                            mask_view.view()};
  return use(views);
}

std::vector<Tensor> SampleRows(const Tensor& logits, const std::vector<Tensor>& params,
                               const paddle::optional<Tensor>& mask) {
  SampleArgs args = with_params(params, mask, [&](const SamplingViews& views) {
    return sample_args(TensorView(logits, "logits"), views);
  });
  Tensor chosen = new_tensor(logits, {args.rows}, DataType::INT32, &args.chosen);
  run_with_workspace(&args, run_sample_rows);
  return {chosen};
}

std::vector<Tensor> ProcessedProbabilities(const Tensor& logits, const std::vector<Tensor>& params,
                                           const paddle::optional<Tensor>& mask) {
  LawArgs args = with_params(params, mask, [&](const SamplingViews& views) {
    return law_args(TensorView(logits, "logits"), views);
  });
  Tensor law = new_tensor(logits, {args.rows, args.vocab}, DataType::FLOAT32, &args.law);
  run_with_workspace(&args, run_processed_probabilities);
  return {law};
}

std::vector<Tensor> RowLogprobs(const Tensor& logits, const Tensor& token_ids, int64_t num_top) {
  LogprobsArgs args =
      logprobs_args(TensorView(logits, "logits"), TensorView(token_ids, "token_ids"), num_top);
  Tensor logprob = new_tensor(logits, {args.rows}, DataType::FLOAT32, &args.logprob);
  Tensor rank = new_tensor(logits, {args.rows}, DataType::INT32, &args.rank);
  Tensor top_ids = new_tensor(logits, {args.rows, num_top}, DataType::INT32, &args.top_ids);
  Tensor top_logprobs =
      new_tensor(logits, {args.rows, num_top}, DataType::FLOAT32, &args.top_logprobs);
  run_with_workspace(&args, run_row_logprobs);
  return {logprob, rank, top_ids, top_logprobs};
}

template <class T>
Tensor to_tensor(const std::vector<T>& values, const Tensor& like, DataType dtype) {
  T* address = nullptr;
  Tensor tensor = new_tensor(like, {static_cast<int64_t>(values.size())}, dtype, &address);
  if (!values.empty()) std::memcpy(address, values.data(), values.size() * sizeof(T));
  return tensor;
}

std::vector<Tensor> NgramMatch(const Tensor& tokens, const Tensor& splits, const Tensor& max_draft,
                               int64_t max_ngram, int64_t min_ngram) {
  const DraftBatch batch = ngram_match(TensorView(tokens, "tokens"), TensorView(splits, "splits"),
                                       TensorView(max_draft, "max_draft"), {max_ngram, min_ngram});
  return {to_tensor(batch.tokens, tokens, DataType::INT32),
          to_tensor(batch.splits, tokens, DataType::INT64)};
}

std::vector<Tensor> Verify(const Tensor& draft_tokens, const Tensor& targets,
                           const Tensor& draft_splits, const paddle::optional<Tensor>& parents) {
  const VerifiedBatch batch = verify_drafts(
      TensorView(draft_tokens, "draft_tokens"), OptionalTensorView(parents, "parents").view(),
      TensorView(targets, "targets"), TensorView(draft_splits, "draft_splits"));
  return {to_tensor(batch.accepted, draft_tokens, DataType::INT32),
          to_tensor(batch.splits, draft_tokens, DataType::INT64),
          to_tensor(batch.num_accepted, draft_tokens, DataType::INT32),
          to_tensor(batch.next_tokens, draft_tokens, DataType::INT32)};
}

Shapes SampleShape(const Shape& logits, const Shapes&, const paddle::optional<Shape>&) {
  return {{logits[0]}};
}
Types SampleType(DataType, const Types&, const paddle::optional<DataType>&) {
  return {DataType::INT32};
}
Shapes LawShape(const Shape& logits, const Shapes&, const paddle::optional<Shape>&) {
  return {logits};
}
Types LawType(DataType logits, const Types&, const paddle::optional<DataType>&) { return {logits}; }
Shapes LogprobsShape(const Shape& logits, const Shape&, int64_t num_top) {
  return {{logits[0]}, {logits[0]}, {logits[0], num_top}, {logits[0], num_top}};
}
Types LogprobsType(DataType logits, DataType) {
  return {logits, DataType::INT32, DataType::INT32, logits};
}
Shapes NgramShape(const Shape&, const Shape& splits, const Shape&) { return {{-1}, splits}; }
Types NgramType(DataType, DataType, DataType) { return {DataType::INT32, DataType::INT64}; }
Shapes VerifyShape(const Shape&, const Shape&, const Shape& draft_splits,
                   const paddle::optional<Shape>&) {
  const int64_t sequences = draft_splits[0] < 0 ? -1 : draft_splits[0] - 1;
  return {{-1}, draft_splits, {sequences}, {sequences}};
}
Types VerifyType(DataType, DataType, DataType, const paddle::optional<DataType>&) {
  return {DataType::INT32, DataType::INT64, DataType::INT32, DataType::INT32};
}

}  // namespace
}  // namespace fdspec

PD_BUILD_OP(fdspec_sample_rows)
    .Inputs({"logits", paddle::Vec("params"), paddle::Optional("mask")})
    .Outputs({"chosen"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::SampleRows>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::SampleShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::SampleType));

PD_BUILD_OP(fdspec_processed_probabilities)
    .Inputs({"logits", paddle::Vec("params"), paddle::Optional("mask")})
    .Outputs({"law"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::ProcessedProbabilities>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::LawShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::LawType));

PD_BUILD_OP(fdspec_row_logprobs)
    .Inputs({"logits", "token_ids"})
    .Outputs({"logprob", "rank", "top_ids", "top_logprobs"})
    .Attrs({"num_top: int64_t"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::RowLogprobs>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::LogprobsShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::LogprobsType));

PD_BUILD_OP(fdspec_ngram_match)
    .Inputs({"tokens", "splits", "max_draft"})
    .Outputs({"drafts", "draft_splits"})
    .Attrs({"max_ngram: int64_t", "min_ngram: int64_t"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::NgramMatch>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::NgramShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::NgramType));

PD_BUILD_OP(fdspec_verify)
    .Inputs({"draft_tokens", "targets", "draft_splits", paddle::Optional("parents")})
    .Outputs({"accepted", "splits", "num_accepted", "next_tokens"})
    .SetKernelFn(PD_KERNEL(fdspec::Checked<&fdspec::Verify>::call))
    .SetInferShapeFn(PD_INFER_SHAPE(fdspec::VerifyShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(fdspec::VerifyType));
