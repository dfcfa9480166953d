// Units of memory.
#pragma once

#include <cstdint>

namespace brigade {
inline constexpr int64_t KiB = int64_t{1} << 10;
inline constexpr int64_t MiB = int64_t{1} << 20;
inline constexpr int64_t GiB = int64_t{1} << 30;
}  // namespace brigade
