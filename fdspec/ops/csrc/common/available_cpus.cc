// SPDX-License-Identifier: Apache-2.0
#include "common/available_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace fdspec {
namespace {

constexpr const char* kMount = "/sys/fs/cgroup";

int cpus_of_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// This process's group in the version 2 hierarchy, from the line "0::/a/b"; empty if it has none.
std::string own_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("0::", 0) == 0) return line.substr(3);
  }
  return {};
}

// What one group grants by itself: its cpu.max holds "quota period", or "max period".
double quota_of(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0.0, period = 0.0;
  if (!(file >> quota >> period) || period <= 0.0) return 0.0;
  return quota / period;
}

}  // namespace

double granted_cpus(const std::string& mount, const std::string& group) {
  double least = 0.0;
  for (size_t end = group.size(); end > 0 && end != std::string::npos;
       end = group.rfind('/', end - 1)) {
    const double quota = quota_of(mount + group.substr(0, end));
    if (quota > 0.0 && (least == 0.0 || quota < least)) least = quota;
  }
  // In a container the root of the mount is the container's own group.
  const double root = quota_of(mount);
  return root > 0.0 && (least == 0.0 || root < least) ? root : least;
}

int available_cpus() {
  const int cpus = cpus_of_affinity();
  const double granted = granted_cpus(kMount, own_group());
  if (granted <= 0.0) return cpus;
  return std::clamp(static_cast<int>(std::lround(granted)), 1, cpus);
}

}  // namespace fdspec
