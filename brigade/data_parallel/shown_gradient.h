// Remembers what a step left in a .grad(). The next step adds to a gradient
// that the user has written since (also to zero_grad()'s zeros), but not to the
// step's own.
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
