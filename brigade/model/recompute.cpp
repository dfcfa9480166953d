#include "brigade/model/recompute.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>

#include "brigade/model/random_state.h"
#include "brigade/ops/libtorch_versions.h"
#include "brigade/ops/nested_backward.h"
#include "brigade/ops/once_differentiable.h"

namespace brigade {
namespace {

using torch::autograd::variable_list;

// A node of its own rather than an autograd::Function, which runs backward
// only when one of its tensor arguments needs a gradient: here the parameters
// that the function captured need theirs even if no input does.
class RecomputeBackward : public torch::autograd::Node {
 public:
  // random_state: with which `function` ran; nothing where it drew no numbers.
  RecomputeBackward(
      RecomputedFunction function,
      const variable_list& inputs,
      std::optional<RandomState> random_state)
      : function_(std::move(function)), random_state_(std::move(random_state)) {
    set_next_edges(torch::autograd::collect_next_edges(inputs));
    for (const torch::Tensor& input : inputs)
      saved_.emplace_back(input, /*is_output=*/false);
  }

  std::string name() const override { return "RecomputeBackward"; }

  void release_variables() override {
    for (torch::autograd::SavedVariable& saved : saved_)
      saved.reset_data();
  }

 protected:
  variable_list apply(variable_list&& gradients) override {
    return ops::differentiable_once(
        "recompute", [&] { return gradients_of(std::move(gradients)); });
  }

 private:
  variable_list gradients_of(variable_list&& gradients) {
    variable_list input_gradients(saved_.size());
    if (!gradients[0].defined())
      return input_gradients;
    variable_list leaves(saved_.size());
    for (size_t i = 0; i < saved_.size(); ++i) {
      const torch::Tensor input = saved_[i].unpack();
      if (input.defined())
        leaves[i] = input.detach().set_requires_grad(input.requires_grad());
    }
    torch::autograd::Edge root;
    {
      const torch::AutoGradMode with_gradients(true);
      const torch::Tensor output = run_again(leaves);
      if (output.requires_grad())
        root = torch::autograd::impl::gradient_edge(output);
    }
    if (!root.is_valid())
      return input_gradients;
    // A backward within the backward: it reaches the leaves and the
    // parameters' accumulators, and runs their hooks.
    ops::NestedBackward::run([&] {
      torch::autograd::Engine::get_default_engine().execute(
          {root},
          {std::move(gradients[0])},
          /*keep_graph=*/false,
          /*create_graph=*/false,
          /*accumulate_grad=*/true);
    });
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (leaves[i].defined() && leaves[i].requires_grad())
        input_gradients[i] = leaves[i].grad();
    }
    return input_gradients;
  }

  torch::Tensor run_again(const variable_list& leaves) const {
    if (!random_state_)
      return function_(leaves);
    const RandomState::Scope scope(*random_state_);
    return function_(leaves);
  }

  RecomputedFunction function_;
  std::optional<RandomState> random_state_;
  std::vector<torch::autograd::SavedVariable> saved_;
};

}  // namespace

torch::Tensor recompute(
    RecomputedFunction function,
    const std::vector<torch::Tensor>& inputs) {
  if (!torch::GradMode::is_enabled())
    return function(inputs);
  std::optional<RandomState> random_state(inputs);
  torch::Tensor output;
  {
    const torch::NoGradGuard no_gradients;
    // Detached: it may be an input itself, whose own history must not change.
    output = function(inputs).detach();
  }
  // Nobody drew a number: the second run need not touch the generators.
  if (random_state->is_current())
    random_state.reset();
  const auto node = ops::make_node<RecomputeBackward>(
      std::move(function), inputs, std::move(random_state));
  torch::autograd::create_gradient_edge(output, node);
  return output;
}

}  // namespace brigade
