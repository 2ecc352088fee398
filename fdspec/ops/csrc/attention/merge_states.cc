// SPDX-License-Identifier: Apache-2.0
#include "attention/merge_states.h"

namespace fdspec {
namespace {

constexpr int64_t kMinValuesPerSlice = 16384;

}  // namespace

void run_merge_attention_states(const MergeStatesArgs& args) {
  launch(merge_attention_states_kernel(), args,
         slices_for(args.pairs * args.head_dim, kMinValuesPerSlice));
}

}  // namespace fdspec
