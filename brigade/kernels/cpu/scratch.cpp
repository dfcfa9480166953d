#include "brigade/kernels/cpu/scratch.h"

#include <array>
#include <cstdlib>
#include <memory>
#include <new>

namespace brigade::ops {
namespace {

struct Area {
  std::unique_ptr<void, decltype(&std::free)> memory{nullptr, &std::free};
  size_t capacity = 0;
};

using Areas = std::array<Area, 4>;  // by slot

Areas& areas() {
  thread_local Areas result;
  return result;
}

}  // namespace

void* scratch(ScratchSlot slot, size_t bytes) {
  constexpr size_t kPage = 4096;
  Area& area = areas()[static_cast<size_t>(slot)];
  if (bytes > area.capacity || area.memory == nullptr) {
    area.capacity = 0;
    area.memory.reset();
    const size_t capacity = (bytes / kPage + 1) * kPage;
    area.memory.reset(std::aligned_alloc(kPage, capacity));
    if (area.memory == nullptr)
      throw std::bad_alloc();
    area.capacity = capacity;
  }
  return area.memory.get();
}

size_t scratch_bytes() {
  size_t bytes = 0;
  for (const Area& area : areas())
    bytes += area.capacity;
  return bytes;
}

}  // namespace brigade::ops
