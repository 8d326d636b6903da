// What must hold of values that come from outside.
#pragma once

#include <stdexcept>

namespace octavo {

// Throws std::invalid_argument, which Python sees as a ValueError.
inline void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

}  // namespace octavo
