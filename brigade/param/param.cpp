#include "brigade/param/param.h"

#include <algorithm>

namespace brigade {

torch::Tensor Param::state(std::string_view state_name) const {
  const auto found =
      std::find_if(states.begin(), states.end(), [&](const State& state) {
        return state.name == state_name;
      });
  return found == states.end() ? torch::Tensor() : found->tensor;
}

torch::Tensor take_shard(const torch::Tensor& full, const ParamShard& cut) {
  if (cut.dim == kNotCut)
    return full;
  const auto slice = full.narrow(cut.dim, cut.begin, cut.end - cut.begin);
  if (slice.sizes() == torch::IntArrayRef(cut.shape))
    return slice;
  auto padded = torch::zeros(cut.shape, full.options());
  padded.narrow(cut.dim, 0, cut.end - cut.begin).copy_(slice);
  return padded;
}

}  // namespace brigade
