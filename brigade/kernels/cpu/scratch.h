// Working memory of a thread that only grows: kernels take it again and again
// without an allocation.
#pragma once

#include <cstddef>

namespace brigade::ops {

// At least `bytes` bytes, aligned to a page, valid until the calling thread's
// next call with the same slot. Contents are undefined. The slots keep apart
// users that are active at once.
enum class ScratchSlot { kProduct, kKernel, kShared, kLogits };
void* scratch(ScratchSlot slot, size_t bytes);
// What the calling thread's slots hold by now.
size_t scratch_bytes();

// Hands out consecutive cache-line aligned pieces of one scratch area.
class ScratchPieces {
 public:
  // Call once to add up (base null), once to hand out.
  explicit ScratchPieces(void* base) : base_(static_cast<char*>(base)) {}
  template <typename T>
  T* take(size_t numel) {
    constexpr size_t kLine = 64;
    char* piece = base_ == nullptr ? nullptr : base_ + used_;
    // A line more than a multiple of 4 KiB keeps pieces out of step.
    used_ += (numel * sizeof(T) + kLine - 1) / kLine * kLine + kLine;
    return reinterpret_cast<T*>(piece);
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

}  // namespace brigade::ops
