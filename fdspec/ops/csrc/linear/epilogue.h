// SPDX-License-Identifier: Apache-2.0
// What happens to 16 finished sums of a linear layer: + bias, + residual, store. Kernel files only.
#pragma once

#include "common/vec.h"
#include "linear/linear.h"

namespace fdspec {
namespace FDSPEC_ISA {

FDSPEC_INLINE void finish(const LinearArgs& args, int64_t row, int64_t panel, F16 sum) {
  const int64_t channel = panel * kPanelChannels;
  const int64_t offset = row * args.layout.out_features + channel;
  const int count =
      static_cast<int>(min_of<int64_t>(kPanelChannels, args.layout.out_features - channel));
  if (args.bias != nullptr) sum = sum + F16::load_partial(args.bias + channel, count);
  if (args.residual != nullptr) sum = sum + F16::load_partial(args.residual + offset, count);
  sum.store_partial(args.out + offset, count);
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
