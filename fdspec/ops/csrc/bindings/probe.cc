// SPDX-License-Identifier: Apache-2.0
#include "probe/probe.h"

#include "bindings/array.h"
#include "bindings/registry.h"

namespace fdspec {
namespace {

int32_t bind_read_memory(py::handle data, int64_t passes) {
  const Array array(data, "data");
  const uint8_t* bytes = input<uint8_t>(array, {kAnySize});
  int32_t combined = 0;
  without_gil([&] { combined = run_read_memory(bytes, array.size(0), passes); });
  return combined;
}

}  // namespace
}  // namespace fdspec

FDSPEC_BINDINGS(probe) {
  namespace py = pybind11;
  using release_gil = py::call_guard<py::gil_scoped_release>;
  module.def("read_memory", &fdspec::bind_read_memory);
  module.def("run_int8_peak", &fdspec::run_int8_peak, release_gil());
  module.def("run_float_peak", &fdspec::run_float_peak, release_gil());
  module.def("run_bfloat16_peak", &fdspec::run_bfloat16_peak, release_gil());
}
