// Numbers with units that suit their size, for people.
//
// PURE.
#pragma once

#include <string>

namespace brigade {

// "512 bytes", "1.05 MB".
std::string readable_bytes(double size_bytes);

// The unit in which memory is shown; for numbers side by side, that of the
// largest.
struct MemoryUnit {
  double bytes;
  const char* name;  // "GiB"
};
MemoryUnit memory_unit(double largest_bytes);

}  // namespace brigade
