// SPDX-License-Identifier: Apache-2.0
// One thread pool for all ops. A kernel is `void kernel(const Args&, Slice)`; every thread of a
// parallel region calls it with its own slice. Phases of an op are separated by slice.sync().
// Threads have denormals flushed to zero and round to nearest for the length of a region.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/isa.h"

namespace fdspec {

// Meeting point of the threads of one parallel region.
class Barrier;
FDSPEC_EXPORT void wait_at(Barrier* barrier, int count);

// Half-open range of work items.
struct Range {
  int64_t begin;
  int64_t end;
};

// The part of a parallel region that one thread does. Methods are always inlined: kernel files
// of different instruction sets must not share code.
struct Slice {
  int index;
  int count;
  Barrier* barrier;

  // Contiguous share of `total` items, in multiples of `grain` (the last share may be shorter).
  FDSPEC_INLINE Range share(int64_t total, int64_t grain = 1) const {
    const int64_t units = (total + grain - 1) / grain;
    const int64_t begin = units * index / count * grain;
    const int64_t end = units * (index + 1) / count * grain;
    return {begin < total ? begin : total, end < total ? end : total};
  }

  // Returns when all slices of the region have arrived. Every slice calls it equally often.
  FDSPEC_INLINE void sync() const {
    if (count > 1) wait_at(barrier, count);
  }
};

// Number of threads, the calling one included. Default: the CPUs this process may run on.
FDSPEC_EXPORT int num_threads();

// Takes effect at the next region; `count` >= 1.
FDSPEC_EXPORT void set_num_threads(int count);

// Has the threads ready for a region that will start soon: a sleeping thread needs some fifty
// microseconds to come.
FDSPEC_EXPORT void wake_threads();

// Threads worth using for `work` units when one thread should get at least `min_work` of them.
FDSPEC_EXPORT int slices_for(int64_t work, int64_t min_work);

using RegionFn = void (*)(void* context, Slice slice);

// Calls function(context, slice) once for each of num_slices slices (capped at num_threads()),
// slice 0 on the calling thread, and returns when all have returned. Inside a region it runs
// serially. Regions of different calling threads take turns. The function must not throw.
FDSPEC_EXPORT void run_region(int num_slices, RegionFn function, void* context);

// The same for a callable `fn(Slice)`.
template <class Fn>
void parallel(int num_slices, Fn&& fn) {
  using Callable = std::remove_reference_t<Fn>;
  run_region(
      num_slices, [](void* context, Slice slice) { (*static_cast<Callable*>(context))(slice); },
      const_cast<std::remove_const_t<Callable>*>(&fn));
}

}  // namespace fdspec
