// SPDX-License-Identifier: Apache-2.0
#include "linear/quantized_rows.h"

#include "linear/quantize_row.h"

namespace fdspec {
namespace FDSPEC_ISA {

void quantize_rows(const QuantizeRowsArgs& args, Slice slice) {
  const Range rows = slice.share(args.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    quantize_row(args, args.x + row * args.dim, row);
  }
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
