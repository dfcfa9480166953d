#include "brigade/data_parallel/shown_gradient.h"

namespace brigade {

void ShownGradient::note(const torch::Tensor& grad) {
  shown_.emplace(grad.getIntrusivePtr());
  version_ = static_cast<int64_t>(grad._version());
}

bool ShownGradient::is_replaced_by(const torch::Tensor& grad) const {
  if (!grad.defined() || grad.numel() == 0)
    return false;
  if (!shown_ || shown_->_unsafe_get_target() != grad.unsafeGetTensorImpl())
    return true;
  return static_cast<int64_t>(grad._version()) != version_;
}

}  // namespace brigade
