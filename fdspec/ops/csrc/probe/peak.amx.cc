// SPDX-License-Identifier: Apache-2.0
#include "common/tiles.h"
#include "probe/probe.h"

namespace fdspec {
namespace amx {
namespace {

constexpr int kRows = 16, kColumns = 16, kRowBytes = 64;

// Four sums at a time hide the latency of a product. Product::multiply<C, A, B>() takes `depth`
// values of each row of A.
template <class Product>
void measure_products(const PeakArgs& args, Slice slice, int depth) {
  TileShapes shapes;
  for (int tile = 0; tile < kNumTiles; ++tile) shapes.set(tile, kRows, kRowBytes);
  const TileScope scope(shapes);
  load_tile<4>(args.operands, kRowBytes);
  load_tile<5>(args.operands + kTileBytes, kRowBytes);
  load_tile<6>(args.operands + 2 * kTileBytes, kRowBytes);
  load_tile<7>(args.operands + 3 * kTileBytes, kRowBytes);
  for (int64_t i = 0; i < args.iterations; ++i) {
    Product::template multiply<0, 4, 6>();
    Product::template multiply<1, 4, 7>();
    Product::template multiply<2, 5, 6>();
    Product::template multiply<3, 5, 7>();
  }
  int32_t result[kTileBytes / 4];
  store_tile<0>(result, kRowBytes);
  for (int lane = 0; lane < 16; ++lane) args.sink[slice.index * 16 + lane] = result[lane];
  args.operations[slice.index] = args.iterations * 4 * kRows * kColumns * depth * 2;
}

struct SignedUnsigned {
  template <int kC, int kA, int kB>
  static FDSPEC_INLINE void multiply() {
    multiply_signed_unsigned<kC, kA, kB>();
  }
};

struct BFloat16 {
  template <int kC, int kA, int kB>
  static FDSPEC_INLINE void multiply() {
    multiply_bf16<kC, kA, kB>();
  }
};

}  // namespace

void int8_peak(const PeakArgs& args, Slice slice) {
  measure_products<SignedUnsigned>(args, slice, kRowBytes);
}

void bfloat16_peak(const PeakArgs& args, Slice slice) {
  measure_products<BFloat16>(args, slice, kRowBytes / 2);
}

}  // namespace amx
}  // namespace fdspec
