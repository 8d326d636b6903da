// The thread pool: the caller is worker 0, idle workers sleep, barriers spin.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace octavo {

inline constexpr int kMaxThreads = 256;

// Sets the floating-point control of this thread to round-to-nearest without flush-to-zero, and
// restores it: a library built with fast-math may have changed the caller's.
class FloatControl {
 public:
  FloatControl();
  ~FloatControl();
  FloatControl(const FloatControl&) = delete;
  FloatControl& operator=(const FloatControl&) = delete;

 private:
  unsigned saved_;
};

class ThreadPool {
 public:
  using Function = void (*)(void* context, int thread);

  // Throws std::invalid_argument unless 1 <= threads <= kMaxThreads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }
  // Runs `function` on every worker, the calling thread included, and waits for all. Must not be
  // called from two threads at once. `function` must not throw.
  void run(Function function, void* context);
  // Waits for all workers; only inside run().
  void barrier();
  // False in a forked child, where the workers do not exist.
  bool alive() const;

 private:
  struct Worker {
    ThreadPool* pool;
    int index;
    pthread_t thread;
  };
  static void* entry(void* worker);
  void work(int index);
  uint32_t wait_for_work(uint32_t seen);
  void stop();

  const int threads_;
  const pid_t owner_;
  std::vector<Worker> workers_;
  Function function_ = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

// The items of one phase after another, handed out by an atomic range per thread: each owner takes
// from the front of its own range, then steals from the back of its siblings'. The first touch of a
// phase (known by its tag) splits [0, items) evenly: thread t owns [items·t/T, items·(t+1)/T).
// Phases are separated by barriers, and every thread asks at least once in each.
class WorkQueue {
 public:
  explicit WorkQueue(int threads) : ranges_(size_t(threads)) {}
  // The next item for `thread`, or -1. At most 2^24 items.
  int next(int thread, uint16_t tag, int items);

 private:
  struct alignas(64) Range {
    std::atomic<uint64_t> state{0};  // tag : 16, back : 24, front : 24
  };
  std::vector<Range> ranges_;
};

inline int share_begin(int items, int threads, int thread) {
  return int(int64_t(items) * thread / threads);
}

}  // namespace octavo
