// The clock of every measurement: monotonic, in nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>

namespace brigade {

inline int64_t steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace brigade
