#include "brigade/ops/scratch.h"

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

}  // namespace

void* scratch(ScratchSlot slot, size_t bytes) {
  constexpr size_t kPage = 4096;
  thread_local std::array<Area, 4> areas;
  Area& area = areas[static_cast<size_t>(slot)];
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

}  // namespace brigade::ops
