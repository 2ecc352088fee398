// SPDX-License-Identifier: Apache-2.0
#include "speculation/prediction.h"

#include <algorithm>
#include <cstdlib>

namespace fdspec {

int64_t prediction_match(const int32_t* prediction, int64_t num_predicted, const int32_t* output,
                         int64_t num_output) {
  if (num_output == 0) return num_predicted > 0 ? 0 : -1;
  int64_t best_length = 0, best_end = -1;
  for (int64_t end = 1; end < num_predicted; ++end) {
    if (prediction[end - 1] != output[num_output - 1]) continue;
    const int64_t limit = std::min({kMaxPredictionMatch, end, num_output});
    int64_t length = 1;
    while (length < limit && prediction[end - 1 - length] == output[num_output - 1 - length]) {
      ++length;
    }
    if (length == 1 && end != num_output) continue;
    const bool is_nearer = std::llabs(end - num_output) < std::llabs(best_end - num_output);
    if (length > best_length || (length == best_length && is_nearer)) {
      best_length = length;
      best_end = end;
    }
  }
  return best_end;
}

}  // namespace fdspec
