#include "pool.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "require.hpp"

namespace octavo {
namespace {

constexpr auto kSpin = std::chrono::microseconds(80);
constexpr int kSpinsBeforeYield = 1 << 14;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  asm volatile("yield");
#endif
}

void futex(std::atomic<uint32_t>& word, int op, uint32_t value) {
  static_assert(sizeof(word) == 4);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), op, value, nullptr, nullptr, 0);
}

}  // namespace

#if defined(__x86_64__)
FloatControl::FloatControl() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
FloatControl::~FloatControl() { _mm_setcsr(saved_); }
#else
FloatControl::FloatControl() : saved_(0) {}
FloatControl::~FloatControl() { (void)saved_; }
#endif

ThreadPool::ThreadPool(int threads) : threads_(threads), owner_(getpid()) {
  require(threads >= 1 && threads <= kMaxThreads, "threads out of range");
  workers_.resize(size_t(threads - 1));
  for (int i = 1; i < threads; ++i) {
    Worker& worker = workers_[size_t(i - 1)];
    worker = {this, i, {}};
    if (pthread_create(&worker.thread, nullptr, entry, &worker) != 0) {
      workers_.resize(size_t(i - 1));
      stop();
      throw std::runtime_error("cannot start a worker thread; lower the number of threads");
    }
  }
}

ThreadPool::~ThreadPool() { stop(); }

bool ThreadPool::alive() const { return getpid() == owner_; }

void ThreadPool::stop() {
  if (!alive()) return;
  stopping_ = true;
  epoch_.fetch_add(1);
  futex(epoch_, FUTEX_WAKE_PRIVATE, INT_MAX);
  for (Worker& worker : workers_) pthread_join(worker.thread, nullptr);
  workers_.clear();
}

void* ThreadPool::entry(void* argument) {
  Worker* worker = static_cast<Worker*>(argument);
  const FloatControl control;
  worker->pool->work(worker->index);
  return nullptr;
}

uint32_t ThreadPool::wait_for_work(uint32_t seen) {
  const auto give_up = std::chrono::steady_clock::now() + kSpin;
  for (int spins = 1;; ++spins) {
    const uint32_t now = epoch_.load(std::memory_order_acquire);
    if (now != seen) return now;
    pause();
    if (spins % 64 == 0 && std::chrono::steady_clock::now() > give_up) break;
  }
  sleepers_.fetch_add(1);
  while (epoch_.load() == seen) futex(epoch_, FUTEX_WAIT_PRIVATE, seen);
  sleepers_.fetch_sub(1);
  return epoch_.load();
}

void ThreadPool::work(int index) {
  uint32_t seen = 0;
  for (;;) {
    seen = wait_for_work(seen);
    if (stopping_) return;
    function_(context_, index);
    barrier();
  }
}

void ThreadPool::run(Function function, void* context) {
  const FloatControl control;
  function_ = function;
  context_ = context;
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) futex(epoch_, FUTEX_WAKE_PRIVATE, INT_MAX);
  function(context, 0);
  barrier();
}

void ThreadPool::barrier() {
  if (threads_ == 1) return;
  const uint32_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; ++spins) {
    if (spins < kSpinsBeforeYield) {
      pause();
    } else {
      sched_yield();  // a sibling was preempted: let it run
    }
  }
}

int WorkQueue::next(int thread, uint16_t tag, int items) {
  constexpr uint64_t kMask = (uint64_t(1) << 24) - 1;
  const int threads = int(ranges_.size());
  const auto make = [tag](uint64_t front, uint64_t back) {
    return front | back << 24 | uint64_t(tag) << 48;
  };
  for (int i = 0; i < threads; ++i) {
    const int owner = (thread + i) % threads;
    std::atomic<uint64_t>& state = ranges_[size_t(owner)].state;
    uint64_t seen = state.load(std::memory_order_relaxed);
    for (;;) {
      uint64_t front = seen & kMask, back = (seen >> 24) & kMask;
      if (uint16_t(seen >> 48) != tag) {
        front = uint64_t(share_begin(items, threads, owner));
        back = uint64_t(share_begin(items, threads, owner + 1));
      }
      if (front >= back) break;
      const uint64_t left = i == 0 ? make(front + 1, back) : make(front, back - 1);
      if (state.compare_exchange_weak(seen, left, std::memory_order_relaxed)) {
        return int(i == 0 ? front : back - 1);
      }
    }
  }
  return -1;
}

}  // namespace octavo
