#include "brigade/wrap/compute_copies.h"

#include <algorithm>
#include <utility>

#include "brigade/data_parallel/grad_hooks.h"

namespace brigade {

ComputeCopies::ComputeCopies(
    std::vector<Param>& params,
    torch::ScalarType dtype,
    const std::vector<std::string>& keep)
    : self_(std::make_shared<ComputeCopies*>(this)) {
  for (Param& param : params) {
    if (param.tensor.scalar_type() != torch::kFloat ||
        std::find(keep.begin(), keep.end(), param.name) != keep.end())
      continue;
    param.compute_copy = param.tensor.detach().to(dtype);
    copies_.push_back({.param = param.tensor, .low = param.compute_copy});
  }
  for (Copy& copy : copies_) {
    // A backward inside the graph of an earlier one reaches no output, but does
    // reach this hook. The hook runs ahead of GradSync's, so that the
    // parameters are restored before that one ends the step.
    if (!copy.param.requires_grad())
      continue;
    copy.hook = copy.param.register_hook([this](const torch::Tensor& grad) {
      if (!are_in_place_)
        return;
      on_backward();
      watch(grad);
    });
  }
}

ComputeCopies::~ComputeCopies() {
  restore();
  for (Copy& copy : copies_) {
    if (copy.param.requires_grad())
      copy.param.remove_hook(copy.hook);
  }
}

ComputeCopies::InForward::InForward(ComputeCopies& copies)
    : copies_(&copies), were_in_place_(copies.are_in_place_) {
  const torch::NoGradGuard no_grad;
  copies.are_in_place_ = true;
  for (Copy& copy : copies.copies_) {
    take_place(copy);
    copy.low.copy_(copy.full);
  }
}

ComputeCopies::InForward::~InForward() {
  if (!were_in_place_)
    copies_->restore();
}

void ComputeCopies::take_place(Copy& copy) {
  if (copy.full.defined())
    return;
  copy.full = copy.param.variable_data();
  copy.accumulator = stand_in_for_data(copy.param, copy.low);
}

void ComputeCopies::take_place() {
  if (std::exchange(are_in_place_, true))
    return;
  for (Copy& copy : copies_)
    take_place(copy);
}

void ComputeCopies::restore(Copy& copy) {
  if (copy.full.defined())
    stand_in_for_data(copy.param, std::exchange(copy.full, {}));
}

void ComputeCopies::restore(const torch::Tensor& param) {
  for (Copy& copy : copies_) {
    if (copy.param.is_same(param))
      restore(copy);
  }
}

void ComputeCopies::restore() {
  are_in_place_ = false;
  watches_gradients_ = false;
  for (Copy& copy : copies_)
    restore(copy);
}

void ComputeCopies::watch(const torch::Tensor& output) {
  if (!output.defined() || !output.requires_grad() || output.is_leaf())
    return;
  output.register_hook([self = std::weak_ptr(self_)](const torch::Tensor&) {
    if (const auto alive = self.lock())
      (*alive)->on_backward();
  });
}

void ComputeCopies::on_backward() {
  take_place();
  // With create_graph, a backward through the gradients of this one begins
  // inside its graph, where it reaches no output.
  if (torch::GradMode::is_enabled() &&
      !std::exchange(watches_gradients_, true)) {
    at_captured_gradients([self = std::weak_ptr(self_)](const auto& gradient) {
      if (const auto alive = self.lock())
        (*alive)->watch(gradient);
    });
  }
  // Registered each time, because a backward that broke off never calls back.
  at_end_of_backward([self = std::weak_ptr(self_)] {
    if (const auto alive = self.lock())
      (*alive)->restore();
  });
}

}  // namespace brigade
