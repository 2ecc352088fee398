// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "attention/arguments.h"
#include "bindings/array.h"
#include "bindings/registry.h"
#include "experts/arguments.h"
#include "linear/arguments.h"
#include "step/program.h"

namespace fdspec {
namespace {

// Throws unless low <= values[i] < high for all of them.
template <class T>
void expect_range(const char* name, const T* values, int64_t count, int64_t high) {
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] >= 0 && values[i] < high) continue;
    throw ArgumentError(std::string(name) + ": " + std::to_string(values[i]) + " at row " +
                        std::to_string(i) + " is outside 0 .. " + std::to_string(high - 1));
  }
}

// A program with the Python objects whose memory it reads.
class PyStepProgram {
 public:
  Value embedding(const py::object& data, const PackedLayout& layout) {
    return program_.embedding(matrix(data, layout));
  }

  Value hidden(int64_t width) { return program_.hidden(width); }

  void tap(Value x, const py::object& cache) {
    const Array array = keep(cache, "cache");
    array.expect_ndim(4);
    const int64_t width = array.size(3);
    const int64_t num_slots = array.size(0) * array.size(2);
    uint16_t* data = output<uint16_t>(array, {kAnySize, 1, kAnySize, width});
    program_.tap(x, {data, num_slots, width});
  }

  void set_first_slot(int first_slot) {
    if (first_slot < 0) throw ArgumentError("first_slot: must not be negative");
    program_.set_first_slot(first_slot);
  }

  Value rms_norm(Value x, const py::object& weight, float epsilon) {
    return program_.rms_norm(x, input<float>(keep(weight, "weight"), {program_.width(x)}), epsilon);
  }

  Value swiglu(Value x) { return program_.swiglu(x); }

  Value linear(Value x, const py::object& data, const PackedLayout& layout, bool float_activations,
               const py::object& bias, py::handle residual) {
    const float* bias_data =
        bias.is_none() ? nullptr : input<float>(keep(bias, "bias"), {layout.out_features});
    return program_.linear(x, matrix(data, layout), float_activations, bias_data,
                           residual.is_none() ? kNoValue : py::cast<Value>(residual));
  }

  Value attention(Value qkv, const py::object& key_cache, const py::object& value_cache,
                  const py::object& cos, const py::object& sin, int num_heads, float scale,
                  const py::object& query_norm, const py::object& key_norm) {
    StepProgram::AttentionLayer layer;
    layer.cache = paged_cache(keep(key_cache, "key_cache"), keep(value_cache, "value_cache"), true);
    const int head_dim = layer.cache.head_dim, num_kv_heads = layer.cache.num_kv_heads;
    layer.shape = {num_heads, num_kv_heads, head_dim};
    expect_heads(layer.shape);
    layer.query_norm = head_norm(query_norm, "query_norm", head_dim);
    layer.key_norm = head_norm(key_norm, "key_norm", head_dim);
    const Array cosines = keep(cos, "cos");
    layer.cos = input<float>(cosines, {kAnySize, head_dim / 2});
    layer.max_positions = cosines.size(0);
    layer.sin = input<float>(keep(sin, "sin"), {layer.max_positions, head_dim / 2});
    layer.scale = scale;
    return program_.attention(qkv, layer);
  }

  Value experts(Value x, Value logits, const py::object& gate_up_data, const PackedLayout& gate_up,
                bool gate_up_float, const py::object& down_data, const PackedLayout& down,
                bool down_float, const py::object& bias, int64_t num_chosen, bool is_normalized,
                float smallest_sum, py::handle residual) {
    const Array gate_up_array = keep(gate_up_data, "gate_up.data");
    const Array down_array = keep(down_data, "down.data");
    const ExpertWeights weights =
        expert_weights({gate_up_array, gate_up, gate_up_float}, {down_array, down, down_float});
    if (!bias.is_none()) keep(bias, "bias");
    const Routing routing = routing_of(OptionalArray(bias, "bias").view(), weights.num_experts,
                                       num_chosen, is_normalized, smallest_sum);
    return program_.experts(x, logits, weights, routing,
                            residual.is_none() ? kNoValue : py::cast<Value>(residual));
  }

  Value select(Value x) { return program_.select(x); }
  void finish() { program_.finish(); }

  void run(py::handle token_ids, py::handle positions, py::handle slots, py::handle block_table,
           py::handle row_splits, py::handle context_lens, py::handle parents,
           py::handle selected_rows, py::handle out, py::handle block_maxima, py::handle hidden,
           py::handle hidden_out) {
    if (!program_.is_finished()) throw ArgumentError("program: finish() has not been called");
    const PagedCache& cache = *program_.cache();
    const Array ids(token_ids, "token_ids"), lens(context_lens, "context_lens"),
        table(block_table, "block_table"), selected(selected_rows, "selected_rows");
    ids.expect_ndim(1);
    lens.expect_ndim(1);
    const int64_t rows = ids.size(0), sequences = lens.size(0);
    StepInputs inputs;
    inputs.token_ids = ids.data<int32_t>();
    inputs.positions = input<int32_t>(Array(positions, "positions"), {rows});
    inputs.slots = input<int64_t>(Array(slots, "slots"), {rows});
    inputs.block_table = input<int32_t>(table, {sequences, kAnySize});
    inputs.max_blocks = table.size(1);
    inputs.rows = {input<int32_t>(Array(row_splits, "row_splits"), {sequences + 1}),
                   lens.data<int32_t>(), input<int32_t>(Array(parents, "parents"), {rows}),
                   static_cast<int>(sequences), static_cast<int>(rows)};
    inputs.selected_rows = input<int64_t>(selected, {kAnySize});
    inputs.num_selected = selected.size(0);
    inputs.hidden = nullptr;
    if (program_.hidden_width() > 0) {
      inputs.hidden = input<float>(Array(hidden, "hidden"), {rows, program_.hidden_width()});
    } else if (!hidden.is_none()) {
      throw ArgumentError("hidden: the program takes none");
    }
    const OptionalArray kept(hidden_out, "hidden_out");
    inputs.hidden_out =
        kept.view() == nullptr
            ? nullptr
            : output<float>(*kept.view(), {inputs.num_selected, program_.selected_width()});
    inputs.out = nullptr;
    inputs.best_tokens = nullptr;
    inputs.block_maxima = nullptr;
    const Array result(out, "out");
    if (result.ndim() == 1) {
      inputs.best_tokens = output<int32_t>(result, {inputs.num_selected});
    } else {
      inputs.out = output<float>(result, {inputs.num_selected, program_.out_width()});
      const OptionalArray maxima(block_maxima, "block_maxima");
      if (maxima.view() != nullptr) {
        inputs.block_maxima = output<float>(
            *maxima.view(), {inputs.num_selected, num_token_blocks(program_.out_width())});
      }
    }
    expect_range("token_ids", inputs.token_ids, rows, program_.vocab_size());
    expect_range("positions", inputs.positions, rows, program_.max_positions());
    expect_range("selected_rows", inputs.selected_rows, inputs.num_selected, rows);
    expect_slots("slots", inputs.slots, rows, 0, cache);
    AttentionArgs attention{};
    attention.rows = inputs.rows;
    attention.block_table = inputs.block_table;
    attention.max_blocks = inputs.max_blocks;
    attention.cache = cache;
    attention.first_slot = program_.first_slot();
    expect_attention_rows(attention);
    if (rows > 0) without_gil([&] { program_.run(inputs); });
  }

  int num_layers_appended() const { return program_.num_layers_appended(); }

 private:
  // The array, which now lives as long as the program.
  Array keep(const py::object& object, const char* name) {
    Array array(object, name);
    kept_.append(object);
    return array;
  }

  PackedMatrix matrix(const py::object& data, const PackedLayout& layout) {
    return {layout, packed_data(keep(data, "weight.data"), layout)};
  }

  // norm: None or (weight, epsilon).
  HeadNorm head_norm(const py::object& norm, const char* name, int64_t head_dim) {
    if (norm.is_none()) return {nullptr, 0.0f};
    const auto pair = py::cast<std::pair<py::object, float>>(norm);
    return {input<float>(keep(pair.first, name), {head_dim}), pair.second};
  }

  StepProgram program_;
  py::list kept_;
};

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(step) {
  using fdspec::PyStepProgram;
  namespace py = pybind11;
  py::class_<PyStepProgram>(module, "StepProgram")
      .def(py::init<>())
      .def("embedding", &PyStepProgram::embedding)
      .def("hidden", &PyStepProgram::hidden)
      .def("tap", &PyStepProgram::tap)
      .def("set_first_slot", &PyStepProgram::set_first_slot)
      .def("rms_norm", &PyStepProgram::rms_norm)
      .def("swiglu", &PyStepProgram::swiglu)
      .def("linear", &PyStepProgram::linear)
      .def("attention", &PyStepProgram::attention)
      .def("experts", &PyStepProgram::experts)
      .def("select", &PyStepProgram::select)
      .def("finish", &PyStepProgram::finish)
      .def("run", &PyStepProgram::run)
      .def_property_readonly("num_layers_appended", &PyStepProgram::num_layers_appended);
}
