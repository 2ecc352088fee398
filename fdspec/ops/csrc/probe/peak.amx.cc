// SPDX-License-Identifier: Apache-2.0
#include "common/tiles.h"
#include "probe/probe.h"

namespace fdspec {
namespace amx {

void int8_peak(const PeakArgs& args, Slice slice) {
  constexpr int kRows = 16, kBytes = 64, kProducts = 4;
  constexpr int kTileInts = kTileBytes / 4;
  TileShapes shapes;
  for (int tile = 0; tile < kNumTiles; ++tile) shapes.set(tile, kRows, kBytes);
  const TileScope scope(shapes);
  load_tile<4>(args.operands, kBytes);
  load_tile<5>(args.operands + kTileBytes, kBytes);
  load_tile<6>(args.operands + 2 * kTileBytes, kBytes);
  load_tile<7>(args.operands + 3 * kTileBytes, kBytes);
  // Four sums at a time hide the latency of a product.
  for (int64_t i = 0; i < args.iterations; ++i) {
    multiply_signed_unsigned<0, 4, 6>();
    multiply_signed_unsigned<1, 4, 7>();
    multiply_signed_unsigned<2, 5, 6>();
    multiply_signed_unsigned<3, 5, 7>();
  }
  int32_t result[kTileInts];
  store_tile<0>(result, kBytes);
  for (int lane = 0; lane < 16; ++lane) args.sink[slice.index * 16 + lane] = result[lane];
  // A product multiplies 16 x 64 by 64 x 16 bytes.
  args.operations[slice.index] = args.iterations * kProducts * kRows * kBytes * 16 * 2;
}

}  // namespace amx
}  // namespace fdspec
