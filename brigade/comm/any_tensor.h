// What comm/ does with tensors besides moving their bytes: it adds and copies.
// Private to comm/.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

namespace brigade {

// While it lives, this thread records nothing for autograd, no observer sees
// its operations, and it may write any tensor: also one that was made under
// c10::InferenceMode, which libtorch lets nobody write outside of that mode. A
// collective is launched by one thread and carried out by another, whose modes
// the caller does not know of.
// What is made meanwhile is an inference tensor: not for the caller.
class AnyTensorMode {
 public:
  AnyTensorMode() = default;
  AnyTensorMode(const AnyTensorMode&) = delete;
  AnyTensorMode& operator=(const AnyTensorMode&) = delete;

 private:
  c10::InferenceMode inference_;
  at::DisableRecordFunctionGuard unobserved_;
};

}  // namespace brigade
