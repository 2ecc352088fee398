// SPDX-License-Identifier: Apache-2.0
#include "sampling/block_maxima.h"

#include "sampling/scores.h"

namespace fdspec {
namespace FDSPEC_ISA {

void publish_logits(const PublishLogitsArgs& args, Slice slice) {
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Scores scores(args.logits + row * args.width, args.width, 1.0f);
    float* const out = args.out + row * args.out_stride;
    float* const maxima = args.maxima + row * args.maxima_stride;
    for (int64_t first = 0; first < args.width; first += kBlock) {
      F16 logits[4];
      scores.load_block(first, logits);
      for (int i = 0; i < 4; ++i) {
        const int64_t token = first + i * kLanes;
        const int count = static_cast<int>(min_of<int64_t>(kLanes, args.width - token));
        if (count == kLanes) {
          logits[i].store(out + token);
        } else if (count > 0) {
          logits[i].store_partial(out + token, count);
        }
      }
      maxima[first / kBlock] = max_of_block(logits);
    }
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
