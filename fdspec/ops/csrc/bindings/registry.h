// SPDX-License-Identifier: Apache-2.0
// How a family of ops gets its functions into the Python module `_core`: in its own file
// bindings/<family>.cc,
//
//   FDSPEC_BINDINGS(linear) { module.def("weight_only_linear", ...); }
//
// so that adding a family edits no shared file.
#pragma once

#include <pybind11/pybind11.h>

namespace fdspec {

using BindFn = void (*)(pybind11::module_& module);

// Called before main() by FDSPEC_BINDINGS; the value only makes it an initialiser.
bool register_bindings(BindFn bind);

}  // namespace fdspec

#define FDSPEC_BINDINGS(family)                                                    \
  static void bind_##family(pybind11::module_& module);                            \
  static const bool family##_is_bound = fdspec::register_bindings(&bind_##family); \
  static void bind_##family(pybind11::module_& module)
