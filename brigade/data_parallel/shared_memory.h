// Which tensors of a module lie in the same memory, so that one shows what is
// written to the other: weights tied by set_data().
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

namespace brigade {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

// For each of `tensors` the name of another one that has an element in common,
// or "". The same tensor under two names is one tensor.
std::vector<std::string> names_of_sharers(
    const std::vector<NamedTensor>& tensors);

}  // namespace brigade
