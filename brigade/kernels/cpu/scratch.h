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

// Hands out consecutive cache-line aligned pieces of one scratch area; with a
// null base it only adds up what they take.
class ScratchPieces {
 public:
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

// What lay_out(pieces) returns, the pieces that it takes lying in one slot. It
// is called twice: to add up, and to hand out.
template <typename LayOut>
auto scratch_pieces(ScratchSlot slot, const LayOut& lay_out) {
  ScratchPieces none(nullptr);
  lay_out(none);
  ScratchPieces pieces(scratch(slot, none.used()));
  return lay_out(pieces);
}

}  // namespace brigade::ops
