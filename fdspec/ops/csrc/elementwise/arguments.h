// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of the row-wise ops and fills in all but the outputs.
#pragma once

#include "common/array_view.h"
#include "elementwise/rms_norm.h"
#include "elementwise/rope.h"
#include "elementwise/swiglu.h"

namespace fdspec {

FDSPEC_EXPORT RmsNormArgs rms_norm_args(const ArrayView& x, const ArrayView& weight, float epsilon);

struct RopePair {
  RopeArgs query;
  RopeArgs key;
};
FDSPEC_EXPORT RopePair rope_args(const ArrayView& query, const ArrayView& key,
                                 const ArrayView& positions, const ArrayView& cos,
                                 const ArrayView& sin);

FDSPEC_EXPORT SwigluArgs swiglu_args(const ArrayView& gate_up);

}  // namespace fdspec
