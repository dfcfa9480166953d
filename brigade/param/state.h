// A tensor that is kept beside a parameter: an optimizer's moment, the low half
// of a master, what a compressed reduction lost, outer momentum. In checkpoints
// NAME.PARAMETER.
#pragma once

#include <torch/types.h>

#include <string>

namespace brigade {

struct State {
  std::string name;
  torch::Tensor tensor;
};

}  // namespace brigade
