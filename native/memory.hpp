// Large aligned allocations on huge pages where the system grants them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// A zeroed anonymous mapping, aligned to 2 MiB and advised to use huge pages. Owns its memory.
class Mapping {
 public:
  Mapping() = default;
  // Throws std::bad_alloc. `populate` touches every page now.
  Mapping(size_t bytes, bool populate);
  Mapping(Mapping&& other) noexcept { *this = static_cast<Mapping&&>(other); }
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Bytes of the mapping that lie on huge pages now, from /proc/self/smaps; 0 if unknown.
  size_t huge_bytes() const;

 private:
  uint8_t* data_ = nullptr;  // aligned start
  size_t bytes_ = 0;
  void* base_ = nullptr;
  size_t base_bytes_ = 0;
};

}  // namespace octavo
