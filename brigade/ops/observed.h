// Makes an op of ours visible to those that observe libtorch's operations
// (at::RecordFunction): its profiler, and modules whose weights are gathered
// when they are read (wrap/weight_observer.h, gather_observer.h).
#pragma once

#include <ATen/record_function.h>
#include <torch/types.h>

#include <vector>

namespace brigade::ops {

// While it lives, the op of this name runs, which reads `tensors`. Observers
// are called before the constructor returns. Some nanoseconds where there are
// none.
class Observed {
 public:
  template <typename... Tensors>
  explicit Observed(const char* name, const Tensors&... tensors)
      : record_(at::RecordScope::FUNCTION) {
    if (!record_.isActive())
      return;
    std::vector<c10::IValue> inputs;
    if (record_.needsInputs())
      (inputs.emplace_back(tensors), ...);
    record_.before(
        name, c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
  }

 private:
  at::RecordFunction record_;
};

}  // namespace brigade::ops
