// SPDX-License-Identifier: Apache-2.0
#include "common/workspace.h"

#include <cstddef>
#include <memory>
#include <new>

namespace fdspec {
namespace {

constexpr std::align_val_t kAlignment{64};

struct Free {
  void operator()(std::byte* block) const { ::operator delete(block, kAlignment); }
};

}  // namespace

void* thread_workspace(int64_t num_bytes) {
  thread_local std::unique_ptr<std::byte, Free> block;
  thread_local int64_t capacity = 0;
  if (num_bytes > capacity) {
    block.reset();
    capacity = 0;
    block.reset(
        static_cast<std::byte*>(::operator new(static_cast<size_t>(num_bytes), kAlignment)));
    capacity = num_bytes;
  }
  return block.get();
}

}  // namespace fdspec
