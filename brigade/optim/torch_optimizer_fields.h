// The states that torch::optim's optimizers keep of a parameter, by name.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace brigade {

// References into a state.
struct OptimizerFields {
  std::vector<std::pair<std::string, torch::Tensor*>> tensors;
  int64_t* step = nullptr;  // null: not counted
};

// Throws UsageError for a state of another optimizer than SGD, Adam, AdamW,
// RMSprop and Adagrad.
OptimizerFields fields_of(torch::optim::OptimizerParamState& state);

// An empty state of the optimizer's kind. Throws as fields_of() does.
std::unique_ptr<torch::optim::OptimizerParamState> make_param_state(
    const torch::optim::Optimizer& optimizer);

// The optimizer's state of `param`; null if it has none yet.
torch::optim::OptimizerParamState* find_param_state(
    const torch::optim::Optimizer& optimizer,
    const torch::Tensor& param);
// Null removes the state.
void set_param_state(
    torch::optim::Optimizer& optimizer,
    const torch::Tensor& param,
    std::unique_ptr<torch::optim::OptimizerParamState> state);

}  // namespace brigade
