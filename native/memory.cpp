#include "memory.hpp"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

namespace octavo {
namespace {
constexpr size_t kHugePage = size_t(2) << 20;
}

Mapping::Mapping(size_t bytes, bool populate) {
  bytes_ = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  if (bytes_ == 0) return;
  base_bytes_ = bytes_ + kHugePage;
  base_ = mmap(nullptr, base_bytes_, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    throw std::bad_alloc();
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(base_);
  data_ = reinterpret_cast<uint8_t*>((start + kHugePage - 1) / kHugePage * kHugePage);
  madvise(data_, bytes_, MADV_HUGEPAGE);
  if (!populate) return;
#ifdef MADV_POPULATE_WRITE
  if (madvise(data_, bytes_, MADV_POPULATE_WRITE) == 0) return;
#endif
  for (size_t at = 0; at < bytes_; at += 4096) data_[at] = 0;
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(base_, other.base_);
  std::swap(base_bytes_, other.base_bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (base_) munmap(base_, base_bytes_);
}

size_t Mapping::huge_bytes() const {
  std::FILE* maps = std::fopen("/proc/self/smaps", "r");
  if (!maps) return 0;
  char line[512];
  size_t total = 0;
  bool inside = false;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data_);
  while (std::fgets(line, sizeof line, maps)) {
    unsigned long from = 0, to = 0, kib = 0;
    if (std::sscanf(line, "%lx-%lx ", &from, &to) == 2) {
      inside = from < begin + bytes_ && to > begin;
    } else if (inside && std::sscanf(line, "AnonHugePages: %lu kB", &kib) == 1) {
      total += size_t(kib) << 10;
    }
  }
  std::fclose(maps);
  return total < bytes_ ? total : bytes_;
}

}  // namespace octavo
