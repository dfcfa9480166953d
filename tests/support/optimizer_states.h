// One state of an optimizer's group by its name.
#pragma once

#include <string_view>

#include "brigade/optim/optimizer.h"

namespace brigade::testing {

// Undefined: it keeps none of that name.
inline torch::Tensor
state_of(const Optimizer& optimizer, size_t group, std::string_view name) {
  for (const State& state : optimizer.states(group)) {
    if (state.name == name)
      return state.tensor;
  }
  return {};
}

}  // namespace brigade::testing
