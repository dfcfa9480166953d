// A tensor under a name, as in a state dict: a parameter or buffer of a module,
// or what is kept beside a parameter: an optimizer's moment, the low half of a
// master, outer momentum, what a compressed reduction or exchange between groups
// lost. In checkpoints of a run the latter are NAME.PARAMETER, but the low half
// as a part of the whole master.PARAMETER.
#pragma once

#include <torch/types.h>

#include <string>

#include "brigade/options/optimizer_states.h"

namespace brigade {

struct State {
  std::string name;
  torch::Tensor tensor;
};

// Zeros as `spec` says, of the weight's shape and beside it.
State zero_state(const StateSpec& spec, const torch::Tensor& weight);

}  // namespace brigade
