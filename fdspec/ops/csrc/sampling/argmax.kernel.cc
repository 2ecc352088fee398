// SPDX-License-Identifier: Apache-2.0
#include "sampling/argmax.h"

#include "sampling/scores.h"

namespace fdspec {
namespace FDSPEC_ISA {

void update_argmax(const ArgmaxArgs& args, Slice slice) {
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Scores scores(args.logits + row * args.width, args.width, 1.0f);
    const Peak peak = scores.peak();
    BestToken& best = args.best[row];
    if (peak.score > best.logit) best = {peak.score, args.first_token + peak.token};
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
