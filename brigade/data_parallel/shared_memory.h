// Finds parameters that lie in the same memory, so that a write to one changes
// the other: weights tied by set_data(), within a module or between two wrapped
// ones.
#pragma once

#include <c10/core/StorageImpl.h>
#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "brigade/param/param.h"
#include "brigade/param/param_memory.h"
#include "brigade/param/state.h"

namespace brigade {

// The bytes [begin, end) of its storage that a tensor's elements lie in; no
// storage if it has no elements.
struct MemorySpan {
  explicit MemorySpan(const torch::Tensor& tensor);
  // Whether both have a byte in common.
  bool overlaps(const MemorySpan& other) const {
    return storage == other.storage && begin < other.end && other.begin < end;
  }
  const void* storage = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

// Returns for each of `tensors` the name of another one that has an element in
// common, or "". The same tensor under two names is one tensor.
std::vector<std::string> names_of_sharers(const std::vector<State>& tensors);

// Remembers where the parameters of a module lay when it was wrapped, as long
// as it is wrapped: two modules tied by set_data() are found when the second is
// wrapped.
class WrappedMemory {
 public:
  // Called before the parameters are moved as `weights` says.
  WrappedMemory(std::span<const Param> params, FlatWeights weights);
  ~WrappedMemory();
  WrappedMemory(const WrappedMemory&) = delete;
  WrappedMemory& operator=(const WrappedMemory&) = delete;

  // The name of another wrapped module's parameter that shares, or shared,
  // memory with `param`, if one of the two moves and one of them trains;
  // otherwise "".
  static std::string name_of_sharer(const Param& param, FlatWeights weights);

 private:
  struct Place {
    std::string name;
    MemorySpan span;
    bool trains = false;
    // Weak: a storage that is gone has no memory, but its address is not used
    // again meanwhile.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  };

  FlatWeights weights_;
  std::vector<Place> places_;
};

}  // namespace brigade
