#include "brigade/base/readable.h"

#include <fmt/format.h>

#include <iterator>

#include "brigade/base/units.h"

namespace brigade {

std::string readable_bytes(double size_bytes) {
  static constexpr const char* kUnits[] = {"bytes", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (; size_bytes >= 1000 && unit + 1 < std::size(kUnits); ++unit)
    size_bytes /= 1000;
  return unit == 0 ? fmt::format("{:.0f} bytes", size_bytes)
                   : fmt::format("{:.2f} {}", size_bytes, kUnits[unit]);
}

MemoryUnit memory_unit(double largest_bytes) {
  const auto gib = static_cast<double>(GiB);
  return largest_bytes >= gib ? MemoryUnit{gib, "GiB"}
                              : MemoryUnit{static_cast<double>(MiB), "MiB"};
}

}  // namespace brigade
