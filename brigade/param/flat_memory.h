// What an optimizer over flat memory must know of its owner's changes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace brigade {

struct FlatMemory {
  // False once the owner has moved to other memory: nothing else reads or
  // writes views of this one.
  bool is_current = true;
  // Raised when weights were replaced from outside (broadcast after a join):
  // masters must be made anew.
  int64_t weights_version = 0;
  // Called before a step reads gradients, where there is one; throws what keeps
  // it from being right.
  std::function<void()> before_step = {};
  // Called when so many elements were stepped, where there is one.
  std::function<void(int64_t numel)> after_step = {};
};
// Shared by the memory's owner and its optimizers.
using FlatMemoryPtr = std::shared_ptr<FlatMemory>;

}  // namespace brigade
