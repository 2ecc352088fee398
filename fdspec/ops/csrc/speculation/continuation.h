// SPDX-License-Identifier: Apache-2.0
// Whether a sequence goes on where an index of it ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fdspec {

// True unless `tokens` is shorter than what is known, or differs from its last tokens. Only those
// are compared, so that the cost does not grow: a name that is used again for another sequence is
// noticed, and a wrong draft would cost time only.
inline bool continues(const std::vector<int32_t>& known, const int32_t* tokens, int64_t length) {
  constexpr int64_t kCompared = 32;
  const int64_t num_known = static_cast<int64_t>(known.size());
  if (length < num_known) return false;
  const int64_t start = std::max<int64_t>(num_known - kCompared, 0);
  return std::equal(known.begin() + start, known.end(), tokens + start);
}

}  // namespace fdspec
