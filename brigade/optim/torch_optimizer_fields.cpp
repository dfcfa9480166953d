#include "brigade/optim/torch_optimizer_fields.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <sstream>
#include <type_traits>

#include "brigade/base/error.h"

namespace brigade {
namespace {

namespace optim = torch::optim;

[[noreturn]] void refuse_optimizer() {
  throw UsageError(
      "[data_parallel] the state of this optimizer cannot be taken apart by "
      "parameter: of torch::optim only that of SGD, Adam, AdamW, RMSprop and "
      "Adagrad can");
}

template <typename State>
OptimizerFields adam_fields(State& state) {
  return {
      {{"exp_avg", &state.exp_avg()},
       {"exp_avg_sq", &state.exp_avg_sq()},
       {"max_exp_avg_sq", &state.max_exp_avg_sq()}},
      &state.step()};
}

// libtorch 1.13 knows a parameter by its address as text, 2.x by the address.
template <typename States>
auto key_of(const States& /*states*/, const torch::Tensor& param) {
  using Key = typename States::key_type;
  if constexpr (std::is_same_v<Key, std::string>) {
    std::ostringstream text;
    text << param.unsafeGetTensorImpl();
    return text.str();
  } else {
    return static_cast<Key>(param.unsafeGetTensorImpl());
  }
}

}  // namespace

OptimizerFields fields_of(optim::OptimizerParamState& state) {
  if (auto* sgd = dynamic_cast<optim::SGDParamState*>(&state))
    return {{{"momentum_buffer", &sgd->momentum_buffer()}}, nullptr};
  if (auto* adam = dynamic_cast<optim::AdamParamState*>(&state))
    return adam_fields(*adam);
  if (auto* adamw = dynamic_cast<optim::AdamWParamState*>(&state))
    return adam_fields(*adamw);
  if (auto* rmsprop = dynamic_cast<optim::RMSpropParamState*>(&state)) {
    return {
        {{"square_avg", &rmsprop->square_avg()},
         {"momentum_buffer", &rmsprop->momentum_buffer()},
         {"grad_avg", &rmsprop->grad_avg()}},
        &rmsprop->step()};
  }
  if (auto* adagrad = dynamic_cast<optim::AdagradParamState*>(&state))
    return {{{"sum", &adagrad->sum()}}, &adagrad->step()};
  refuse_optimizer();
}

std::unique_ptr<optim::OptimizerParamState> make_param_state(
    const optim::Optimizer& optimizer) {
  const auto is = [&]<typename Kind>(const Kind* /*kind*/) {
    return dynamic_cast<const Kind*>(&optimizer) != nullptr;
  };
  if (is(static_cast<const optim::SGD*>(nullptr)))
    return std::make_unique<optim::SGDParamState>();
  if (is(static_cast<const optim::Adam*>(nullptr)))
    return std::make_unique<optim::AdamParamState>();
  if (is(static_cast<const optim::AdamW*>(nullptr)))
    return std::make_unique<optim::AdamWParamState>();
  if (is(static_cast<const optim::RMSprop*>(nullptr)))
    return std::make_unique<optim::RMSpropParamState>();
  if (is(static_cast<const optim::Adagrad*>(nullptr)))
    return std::make_unique<optim::AdagradParamState>();
  refuse_optimizer();
}

optim::OptimizerParamState* find_param_state(
    const optim::Optimizer& optimizer,
    const torch::Tensor& param) {
  const auto& states = optimizer.state();
  const auto found = states.find(key_of(states, param));
  return found == states.end() ? nullptr : found->second.get();
}

void set_param_state(
    optim::Optimizer& optimizer,
    const torch::Tensor& param,
    std::unique_ptr<optim::OptimizerParamState> state) {
  auto& states = optimizer.state();
  const auto key = key_of(states, param);
  if (state)
    states[key] = std::move(state);
  else
    states.erase(key);
}

}  // namespace brigade
