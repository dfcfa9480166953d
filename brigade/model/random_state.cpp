#include "brigade/model/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <algorithm>
#include <mutex>

namespace brigade {
namespace {

torch::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const torch::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

RandomState::RandomState(const std::vector<torch::Tensor>& tensors) {
  const auto add = [this](const at::Generator& generator) {
    const bool is_known =
        std::any_of(states_.begin(), states_.end(), [&](const auto& each) {
          return each.first == generator;
        });
    if (!is_known)
      states_.emplace_back(generator, state_of(generator));
  };
  add(at::detail::getDefaultCPUGenerator());
  for (const torch::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.is_cuda())
      add(at::globalContext().defaultGenerator(tensor.device()));
  }
}

bool RandomState::is_current() const {
  return std::all_of(states_.begin(), states_.end(), [](const auto& each) {
    return torch::equal(state_of(each.first), each.second);
  });
}

RandomState::Scope::Scope(const RandomState& state) {
  for (const auto& [generator, values] : state.states_) {
    before_.emplace_back(generator, state_of(generator));
    set_state(generator, values);
  }
}

RandomState::Scope::~Scope() {
  for (const auto& [generator, values] : before_)
    set_state(generator, values);
}

}  // namespace brigade
