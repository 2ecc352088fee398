// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fdspec {

// Processors that this process may use: its affinity mask, cut to the CPU time that its control
// group grants (a container's `--cpus`), at least 1.
int available_cpus();

// CPU time that a control group and those above it grant, in processors; 0 if there is no limit.
// `mount` is where the version 2 hierarchy is mounted, `group` a path in it, like "/a/b".
double granted_cpus(const std::string& mount, const std::string& group);

}  // namespace fdspec
