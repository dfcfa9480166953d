// A mode in which comm/ adds and copies tensors. Used by the files of comm/
// only.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

namespace brigade {

// While it lives, this thread records nothing for autograd, no observer sees
// its operations, and it may write any tensor, also one that was made under
// c10::InferenceMode, which libtorch otherwise allows in that mode alone. A
// collective is launched by one thread and executed by another, whose modes the
// caller does not know. Tensors that are made meanwhile are inference tensors
// and must not reach the caller.
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
