// SPDX-License-Identifier: Apache-2.0
// Memory that grows and is kept: 64-byte aligned, of undefined content. Pages that are never
// written take no memory.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace fdspec {

class AlignedBuffer {
 public:
  // Makes room for `num_bytes`; what was in it is lost if it has to grow.
  void* reserve(int64_t num_bytes) {
    if (num_bytes > capacity_) {
      const int64_t capacity = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
      data_.reset();
      capacity_ = 0;
      data_.reset(std::aligned_alloc(kAlignment, static_cast<size_t>(capacity)));
      if (data_ == nullptr) throw std::bad_alloc();
      capacity_ = capacity;
    }
    return data_.get();
  }

 private:
  static constexpr int64_t kAlignment = 64;

  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  int64_t capacity_ = 0;
};

}  // namespace fdspec
