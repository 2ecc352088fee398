// SPDX-License-Identifier: Apache-2.0
// The Python module fdspec.ops._core: threads, instruction set, and what each family registers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings/registry.h"
#include "common/array_view.h"
#include "common/available_cpus.h"
#include "common/isa.h"
#include "common/parallel.h"

namespace py = pybind11;

namespace fdspec {
namespace {

std::vector<BindFn>& registered() {
  static std::vector<BindFn> functions;
  return functions;
}

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (int i = 0; i < kNumIsas; ++i) {
    if (isa_supported(static_cast<Isa>(i))) names.emplace_back(isa_name(static_cast<Isa>(i)));
  }
  return names;
}

void set_isa_by_name(const std::string& name) {
  for (int i = 0; i < kNumIsas; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (name != isa_name(isa)) continue;
    if (!isa_supported(isa)) {
      throw py::value_error("isa " + name + " needs " + isa_requirements(isa) +
                            ", which this processor does not have");
    }
    return set_isa(isa);
  }
  throw py::value_error("unknown isa \"" + name + "\"; allowed: portable, avx2, avx512, amx");
}

}  // namespace

bool register_bindings(BindFn bind) {
  registered().push_back(bind);
  return true;
}

}  // namespace fdspec

PYBIND11_MODULE(_core, module) {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      std::rethrow_exception(pointer);
    } catch (const fdspec::ArgumentTypeError& error) {
      PyErr_SetString(PyExc_TypeError, error.what());
    } catch (const fdspec::ArgumentError& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }
  });
  module.attr("headers_digest") = FDSPEC_HEADERS_DIGEST;
  module.def("num_threads", &fdspec::num_threads);
  module.def("set_num_threads", &fdspec::set_num_threads, py::arg("count"));
  module.def("granted_cpus", &fdspec::granted_cpus, py::arg("mount"), py::arg("group"));
  module.def("wake_threads", &fdspec::wake_threads);
  module.def("isa", [] { return fdspec::isa_name(fdspec::current_isa()); });
  module.def("set_isa", &fdspec::set_isa_by_name, py::arg("name"));
  module.def("supported_isas", &fdspec::supported_isas);
  for (const fdspec::BindFn bind : fdspec::registered()) bind(module);
}
