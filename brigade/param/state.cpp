#include "brigade/param/state.h"

namespace brigade {

State zero_state(const StateSpec& spec, const torch::Tensor& weight) {
  const auto dtype =
      spec.dtype == StateDtype::kInt16 ? torch::kShort : torch::kFloat;
  return {spec.name, torch::zeros_like(weight, weight.options().dtype(dtype))};
}

}  // namespace brigade
