// SPDX-License-Identifier: Apache-2.0
#include "common/parallel.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "common/available_cpus.h"

#if FDSPEC_X86
#include <immintrin.h>
#endif

namespace fdspec {
namespace {

// How long a thread spins before it gives the processor away. Consecutive ops of a decode step
// follow each other within a few microseconds; waking a sleeping thread costs about fifty.
constexpr auto kSpinTime = std::chrono::microseconds(40);
constexpr int kSpinsBetweenClockReads = 64;

void pause_cpu() {
#if FDSPEC_X86
  _mm_pause();
#else
  asm volatile("yield");
#endif
}

// Spins until done() or for kSpinTime; returns done().
template <class Done>
bool spin_until(Done done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kSpinsBetweenClockReads; ++i) {
      if (done()) return true;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

// A word that threads wait on: they spin, then sleep. The last one to change it wakes the others.
class WaitWord {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }

  void store(uint32_t value) {
    value_.store(value, std::memory_order_seq_cst);
    wake_sleepers();
  }

  uint32_t subtract_one() {
    const uint32_t left = value_.fetch_sub(1, std::memory_order_seq_cst) - 1;
    wake_sleepers();
    return left;
  }

  // Returns when done(value).
  template <class Done>
  void wait(Done done) {
    if (spin_until([&] { return done(load()); })) return;
    num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
    for (uint32_t seen = value_.load(std::memory_order_seq_cst); !done(seen); seen = load()) {
      syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    }
    num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  void wake_sleepers() {
    if (num_sleeping_.load(std::memory_order_seq_cst) == 0) return;
    syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  }

  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> num_sleeping_{0};
};

// Sets the floating-point mode that kernels rely on and restores the caller's afterwards.
class FloatMode {
 public:
#if FDSPEC_X86
  FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(kMaskAllExceptions | kFlushDenormals); }
  ~FloatMode() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kMaskAllExceptions = 0x1F80;
  static constexpr unsigned kFlushDenormals = 0x8040;
  unsigned saved_;
#elif defined(__aarch64__)
  FloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(kFlushDenormals));
  }
  ~FloatMode() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  static constexpr uint64_t kFlushDenormals = uint64_t{1} << 24;
  uint64_t saved_;
#endif
};

thread_local bool in_region = false;

}  // namespace

class Barrier {
 public:
  void wait(int count) {
    const uint32_t phase = phase_.load();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1);
      return;
    }
    phase_.wait([phase](uint32_t now) { return now != phase; });
  }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) WaitWord phase_;
};

void wait_at(Barrier* barrier, int count) { barrier->wait(count); }

namespace {

class Pool {
 public:
  explicit Pool(int num_threads) : claims_(static_cast<size_t>(num_threads)) {
    for (int index = 1; index < num_threads; ++index) {
      threads_.emplace_back([this, index] { work(index); });
    }
  }

  ~Pool() {
    post(kStop);
    for (std::thread& thread : threads_) thread.join();
  }

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // A region without slices: threads come out of their sleep for it and spin.
  void wake() { post(0); }

  void run(int num_slices, RegionFn function, void* context) {
    function_ = function;
    context_ = context;
    pending_.store(static_cast<uint32_t>(num_slices - 1));
    const uint64_t ticket = post(static_cast<uint64_t>(num_slices));
    function(context, {0, num_slices, &barrier_});
    // On a busy machine a thread may not have come yet; its slice is done here then. If slices
    // meet at the barrier, slice 0 has met them all by now, so none of those is left.
    for (int index = 1; index < num_slices; ++index) run_slice(index, ticket);
    pending_.wait([](uint32_t pending) { return pending == 0; });
  }

 private:
  // A ticket holds a region number and, in its low bits, how many slices the region has.
  static constexpr uint64_t kSlicesMask = 0xFFFF;
  static constexpr uint64_t kStop = kSlicesMask;

  // The last ticket for which the slice of this index has been taken.
  struct alignas(64) Claim {
    std::atomic<uint64_t> ticket{0};
  };

  // Runs a slice of the ticket's region unless someone has taken it. Only who holds a slice may
  // look at the function: the region cannot end before the slice has, so they stay the same.
  void run_slice(int index, uint64_t ticket) {
    std::atomic<uint64_t>& claim = claims_[static_cast<size_t>(index)].ticket;
    uint64_t last = claim.load(std::memory_order_relaxed);
    if (last >= ticket) return;
    if (!claim.compare_exchange_strong(last, ticket, std::memory_order_acq_rel)) return;
    function_(context_, {index, static_cast<int>(ticket & kSlicesMask), &barrier_});
    pending_.subtract_one();
  }

  uint64_t post(uint64_t num_slices) {
    const uint64_t region = (ticket_.load(std::memory_order_relaxed) | kSlicesMask) + 1;
    ticket_.store(region | num_slices, std::memory_order_seq_cst);
    if (num_sleeping_.load(std::memory_order_seq_cst) != 0) {
      {
        const std::lock_guard<std::mutex> lock(sleep_mutex_);
      }
      wake_.notify_all();
    }
    return region | num_slices;
  }

  uint64_t next_ticket(uint64_t seen) {
    const auto posted = [&] { return ticket_.load(std::memory_order_seq_cst) != seen; };
    if (!spin_until(posted)) {
      std::unique_lock<std::mutex> lock(sleep_mutex_);
      num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, posted);
      num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    }
    return ticket_.load(std::memory_order_seq_cst);
  }

  void work(int index) {
    const FloatMode mode;
    in_region = true;
    for (uint64_t ticket = 0;;) {
      ticket = next_ticket(ticket);
      const uint64_t num_slices = ticket & kSlicesMask;
      if (num_slices == kStop) return;
      if (static_cast<uint64_t>(index) < num_slices) run_slice(index, ticket);
    }
  }

  std::vector<Claim> claims_;
  std::vector<std::thread> threads_;
  RegionFn function_ = nullptr;
  void* context_ = nullptr;
  Barrier barrier_;
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) WaitWord pending_;
  alignas(64) std::atomic<int> num_sleeping_{0};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
};

constexpr int kMaxThreads = 1024;

// The process's pool. It is built at the first region and never destroyed at exit, when threads
// may still be asleep in it. A forked child has none of the threads: it abandons its parent's
// pool, whose locks may be held by threads that do not exist there, and builds its own.
struct PoolOwner {
  std::mutex* mutex = new std::mutex;
  Pool* pool = nullptr;
  std::atomic<int> num_threads{available_cpus()};

  static PoolOwner& instance() {
    static PoolOwner* owner = [] {
      pthread_atfork(nullptr, nullptr, [] {
        instance().mutex = new std::mutex;
        instance().pool = nullptr;
        in_region = false;
      });
      return new PoolOwner;
    }();
    return *owner;
  }

  // The pool, of the number of threads that is wanted. The caller holds the mutex.
  Pool& current() {
    const int wanted = num_threads.load(std::memory_order_relaxed);
    if (pool == nullptr || pool->num_threads() != wanted) {
      delete pool;
      pool = new Pool(wanted);
    }
    return *pool;
  }
};

}  // namespace

int num_threads() { return PoolOwner::instance().num_threads.load(std::memory_order_relaxed); }

void set_num_threads(int count) {
  PoolOwner::instance().num_threads.store(std::clamp(count, 1, kMaxThreads),
                                          std::memory_order_relaxed);
}

int slices_for(int64_t work, int64_t min_work) {
  return static_cast<int>(std::clamp<int64_t>(work / min_work, 1, num_threads()));
}

void run_region(int num_slices, RegionFn function, void* context) {
  num_slices = std::min(num_slices, num_threads());
  if (in_region || num_slices <= 1) {
    const FloatMode mode;
    function(context, {0, 1, nullptr});
    return;
  }
  PoolOwner& owner = PoolOwner::instance();
  const std::lock_guard<std::mutex> lock(*owner.mutex);
  Pool& pool = owner.current();
  const FloatMode mode;
  in_region = true;
  pool.run(std::min(num_slices, pool.num_threads()), function, context);
  in_region = false;
}

void wake_threads() {
  PoolOwner& owner = PoolOwner::instance();
  // While a region runs, they are awake.
  const std::unique_lock<std::mutex> lock(*owner.mutex, std::try_to_lock);
  if (lock.owns_lock() && num_threads() > 1) owner.current().wake();
}

}  // namespace fdspec
