// What a step left in a .grad(): a gradient that the user has written since
// (zero_grad()'s zeros too) is one to add to, the step's own is not.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>

namespace brigade {

class ShownGradient {
 public:
  // Remembers `grad` as what the step left.
  void note(const torch::Tensor& grad);
  // Whether `grad` is another tensor, or has been written to.
  bool is_replaced_by(const torch::Tensor& grad) const;

 private:
  // Weak, so that no other tensor can have the address while it is compared.
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> shown_;
  int64_t version_ = 0;
};

}  // namespace brigade
