// What this machine offers: instruction sets, and short measurements of its limits.
#pragma once

#include <string>
#include <vector>

#include "kernels.hpp"

namespace octavo {

// Names of the kernel sets that this machine can run, slowest first.
std::vector<std::string> supported_isas();
// The kernels of `isa`, or of the best one for ""; null if unknown or unsupported.
const Kernels* find_kernels(const std::string& isa);

double probe_barrier_ns(int threads);
// GB/s that all threads read together from `bytes` of memory; choose more than the caches hold.
double probe_read_gbs(int threads, size_t bytes);
// 10^9 int8 multiplications and additions per second of all threads.
double probe_int8_gops(int threads);

}  // namespace octavo
