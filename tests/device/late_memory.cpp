#include "late_memory.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "late_stream.h"

namespace brigade::testing {
namespace {

constexpr size_t kBytes = size_t{1} << 33;  // address space
constexpr size_t kAlignment = 64;

// One range of addresses for pointers, and one of the same size for values.
class LateAllocator final : public c10::Allocator {
 public:
  LateAllocator()
      : pointers_(map(PROT_NONE)), values_(map(PROT_READ | PROT_WRITE)) {}

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device =
        c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).getDevice();
    if (bytes == 0)
      return {nullptr, nullptr, &release, device};
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    char* pointer = take(rounded);
    std::memset(values_at(pointer), 0xff, rounded);  // NaN
    return {pointer, pointer, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(values_at(to), values_at(from), bytes);
  }

  char* values_at(const void* pointer) const {
    return values_ + (static_cast<const char*>(pointer) - pointers_);
  }

 private:
  static char* map(int protection) {
    void* memory = ::mmap(
        nullptr,
        kBytes,
        protection,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1,
        0);
    TORCH_CHECK(memory != MAP_FAILED, "no addresses for the late device");
    return static_cast<char*>(memory);
  }

  static void release(void* pointer);

  // Free once all work queued before is done, as a GPU's allocator reuses
  // memory in its stream's order.
  struct FreeMemory {
    char* pointer;
    std::vector<LateStream::Place> users;
  };
  static bool is_over(const FreeMemory& memory) {
    return std::all_of(
        memory.users.begin(), memory.users.end(), [](const auto& place) {
          return place.is_reached();
        });
  }

  char* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto& free = free_[bytes];
    char* pointer = nullptr;
    if (free.empty() || !is_over(free.front())) {
      TORCH_CHECK(used_ + bytes <= kBytes, "the late device is full");
      pointer = pointers_ + used_;
      used_ += bytes;
    } else {
      pointer = free.front().pointer;
      free.pop_front();
    }
    sizes_[pointer] = bytes;
    return pointer;
  }

  void give_back(void* pointer) {
    auto under_way = LateStream::under_way();
    const std::lock_guard lock(mutex_);
    free_[sizes_.at(pointer)].push_back(
        {static_cast<char*>(pointer), std::move(under_way)});
  }

  char* pointers_;
  char* values_;
  std::mutex mutex_;
  size_t used_ = 0;
  std::map<size_t, std::deque<FreeMemory>> free_;  // by size
  std::map<void*, size_t> sizes_;
};

LateAllocator& allocator() {
  static auto& instance = *new LateAllocator;
  return instance;
}

void LateAllocator::release(void* pointer) {
  if (pointer != nullptr)
    allocator().give_back(pointer);
}

}  // namespace

c10::Allocator& late_allocator() {
  return allocator();
}

torch::Tensor values_of(const torch::Tensor& tensor) {
  if (tensor.numel() == 0)
    return torch::empty(tensor.sizes(), tensor.scalar_type());
  return torch::from_blob(
      allocator().values_at(tensor.const_data_ptr()),
      tensor.sizes(),
      tensor.strides(),
      torch::dtype(tensor.scalar_type()));
}

}  // namespace brigade::testing
