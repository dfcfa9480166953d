#include "brigade/kernels/cpu/tensor_memory.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace brigade::ops {
namespace {

constexpr size_t kAlignment = 64;  // what libtorch promises

// Without "override": libtorch 2.3 made allocate() non-const, and around it
// copy_data() came to be asked for. Whichever there is finds its own here.
class FittingAllocator : public c10::Allocator {
 public:
  // NOLINTBEGIN(modernize-use-override)
  c10::DataPtr allocate(size_t bytes) const { return aligned(bytes); }
  c10::DataPtr allocate(size_t bytes) { return aligned(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const {
    std::memcpy(to, from, bytes);
  }
  // NOLINTEND(modernize-use-override)

 private:
  // What raw_allocate() needs: what frees is known by the data alone.
  c10::DeleterFnPtr raw_deleter() const override { return &free_aligned; }

  static c10::DataPtr aligned(size_t bytes) {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0)
      return {nullptr, nullptr, &free_aligned, cpu};
    // Above that the next line overflows, and malloc() refuses all the same.
    void* memory =
        bytes > PTRDIFF_MAX ? nullptr : std::malloc(bytes + kAlignment);
    TORCH_CHECK(
        memory != nullptr,
        "not enough memory for a tensor of ",
        bytes,
        " bytes");
    // Some 16 to 64 bytes, as malloc() aligns to 16: room for what it returned.
    static_assert(alignof(std::max_align_t) >= sizeof(void*));
    const uintptr_t padding =
        kAlignment - reinterpret_cast<uintptr_t>(memory) % kAlignment;
    void* data = static_cast<char*>(memory) + padding;
    static_cast<void**>(data)[-1] = memory;
    return {data, data, &free_aligned, cpu};
  }
  static void free_aligned(void* data) {
    if (data != nullptr)
      std::free(static_cast<void**>(data)[-1]);
  }
};

void keep_freed_memory() {
#ifdef __GLIBC__
  // The largest threshold that glibc takes: tensors above it are still mapped.
  constexpr int kMapAboveBytes = 32 << 20;
  constexpr int kNeverTrim = -1;
  ::mallopt(M_MMAP_THRESHOLD, kMapAboveBytes);
  ::mallopt(M_TRIM_THRESHOLD, kNeverTrim);
  // The heaps of further threads would be mapped and unmapped all the same.
  ::mallopt(M_ARENA_MAX, 1);
#endif
}

}  // namespace

void set_up_tensor_memory() {
  keep_freed_memory();
  static FittingAllocator allocator;
  constexpr uint8_t kAboveAll = 255;
  c10::SetCPUAllocator(&allocator, kAboveAll);
}

void release_freed_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace brigade::ops
