#include "cpu.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "memory.hpp"
#include "pool.hpp"

namespace octavo {
namespace {

struct Candidate {
  const Kernels* kernels;
  bool supported;
};

std::vector<Candidate> candidates() {
  std::vector<Candidate> all = {{&kScalarKernels, true}};
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  all.push_back({&kAvx2Kernels, avx2});
  all.push_back({&kAvx512VnniKernels, avx512});
#endif
  return all;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates()) {
    if (candidate.supported) names.emplace_back(candidate.kernels->name);
  }
  return names;
}

const Kernels* find_kernels(const std::string& isa) {
  const Kernels* best = nullptr;
  for (const Candidate& candidate : candidates()) {
    if (!candidate.supported) continue;
    if (isa.empty() || isa == candidate.kernels->name) best = candidate.kernels;
  }
  return best;
}

double probe_barrier_ns(int threads) {
  constexpr int kRounds = 20000;
  ThreadPool pool(threads);
  const auto rounds = [](void* context, int) {
    for (int i = 0; i < kRounds; ++i) static_cast<ThreadPool*>(context)->barrier();
  };
  pool.run(rounds, &pool);
  const auto start = std::chrono::steady_clock::now();
  pool.run(rounds, &pool);
  return seconds_since(start) / kRounds * 1e9;
}

double probe_read_gbs(int threads, size_t bytes) {
  constexpr size_t kAhead = 8192;
  constexpr int kPasses = 6;  // a pass that others disturbed says what they left
  ThreadPool pool(threads);
  Mapping memory(bytes, true);
  struct Context {
    const uint8_t* data;
    size_t bytes;
    int threads;
    uint64_t sums[kMaxThreads] = {};
  } context{memory.data(), memory.bytes(), threads};
  const auto read = [](void* opaque, int thread) {
    Context& c = *static_cast<Context*>(opaque);
    const size_t share = c.bytes / size_t(c.threads) / 64 * 64;
    const uint8_t* from = c.data + share * size_t(thread);
    uint64_t sums[8] = {};
    for (size_t at = 0; at < share; at += 64) {
      __builtin_prefetch(from + at + kAhead);
      uint64_t words[8];
      std::memcpy(words, from + at, 64);
      for (int i = 0; i < 8; ++i) sums[i] += words[i];
    }
    for (uint64_t sum : sums) c.sums[thread] += sum;
  };
  double fastest = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(read, &context);
    fastest = std::max(fastest, double(memory.bytes()) / seconds_since(start) * 1e-9);
  }
  return fastest;
}

double probe_int8_gops(int threads) {
  ThreadPool pool(threads);
  struct Context {
    const Kernels* kernels;
    double operations[kMaxThreads];
  } context{find_kernels(""), {}};
  const auto work = [](void* opaque, int thread) {
    Context& c = *static_cast<Context*>(opaque);
    c.operations[thread] = c.kernels->probe_int8(200000);
  };
  pool.run(work, &context);
  const auto start = std::chrono::steady_clock::now();
  pool.run(work, &context);
  double total = 0;
  for (int t = 0; t < threads; ++t) total += context.operations[t];
  return total / seconds_since(start) * 1e-9;
}

}  // namespace octavo
