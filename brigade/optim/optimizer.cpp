#include "brigade/optim/optimizer.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/error.h"

namespace brigade {
namespace {

bool has_master(torch::ScalarType weight) {
  return weight != torch::kFloat;
}

void check(const OptimizerGroup& group) {
  const auto dtype = group.weight.scalar_type();
  if ((dtype == torch::kFloat || dtype == torch::kBFloat16) &&
      group.main_grad.scalar_type() == torch::kFloat &&
      group.weight.dim() == 1 && group.main_grad.dim() == 1 &&
      group.weight.is_contiguous() && group.main_grad.is_contiguous() &&
      group.weight.numel() == group.main_grad.numel())
    return;
  throw Error(
      ExitCode::kUnexpected,
      fmt::format(
          "[optimizer] group '{}': weight is {} of {} elements, main_grad {} "
          "of {}; expected flat contiguous tensors of equal length, bf16 or "
          "float32, and float32",
          group.name,
          c10::toString(dtype),
          group.weight.numel(),
          c10::toString(group.main_grad.scalar_type()),
          group.main_grad.numel()));
}

}  // namespace

void check_has_rate(
    const OptimizerGroup& group,
    const std::vector<double>& lrs) {
  if (static_cast<size_t>(group.param_group) < lrs.size())
    return;
  throw ConfigError(fmt::format(
      "[optimizer] {} learning rates, but '{}' is of parameter group {}, "
      "counted from 0: give one for each group, or a single number for all",
      lrs.size(),
      group.name,
      group.param_group));
}

Optimizer::Optimizer(
    std::vector<OptimizerGroup> groups,
    const OptimizerOptions& options,
    ops::Kernels kernels)
    : groups_(std::move(groups)), options_(options), kernels_(kernels) {
  const torch::NoGradGuard no_grad;
  for (OptimizerGroup& group : groups_) {
    group.weight = group.weight.detach();
    check(group);
    states_.emplace_back();
    for (const StateSpec& spec :
         kept(group.rule.unit, group.weight.scalar_type()))
      states_.back().push_back(zero_state(spec, group.weight));
    weights_versions_.push_back(
        group.memory ? group.memory->weights_version : 0);
  }
}

std::vector<StateSpec> Optimizer::kept(StepUnit unit, torch::ScalarType weight)
    const {
  return optimizer_states(
      options_,
      unit,
      has_master(weight) ? WeightWidth::k16Bit : WeightWidth::k32Bit);
}

torch::Tensor Optimizer::master(size_t group) const {
  return has_master(groups_[group].weight.scalar_type())
             ? states_[group].back().tensor
             : torch::Tensor();
}

void Optimizer::follow_memory() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    const OptimizerGroup& group = groups_[i];
    if (!group.memory)
      continue;
    if (!group.memory->is_current) {
      throw ConfigError(fmt::format(
          "[optimizer] group '{}': its gradients and weights were moved to "
          "other memory after this optimizer was made (BucketOrder::kObserved "
          "plans anew after the first step); make it anew by make_adamw(), "
          "after the first backward at the earliest",
          group.name));
    }
    if (group.memory->before_step)
      group.memory->before_step();
    if (group.memory->weights_version == weights_versions_[i])
      continue;
    weights_versions_[i] = group.memory->weights_version;
    if (torch::Tensor low = master(i); low.defined())
      low.zero_();
  }
}

void Optimizer::begin_step() {
  follow_memory();
  ++steps_;
}

void Optimizer::step_group(
    size_t index,
    double lr,
    double grad_scale,
    ops::AfterRead after_read) {
  const OptimizerGroup& group = groups_.at(index);
  step_range(
      {.group = group,
       .states = states_[index],
       .master = master(index),
       .lr = lr * group.rule.rate,
       .grad_scale = grad_scale,
       .step = steps_,
       .after_read = after_read});
  // Kernels write through pointers: who watches versions must see that weights
  // were stepped and gradients cleared.
  group.weight.unsafeGetTensorImpl()->bump_version();
  if (after_read == ops::AfterRead::kZero)
    group.main_grad.unsafeGetTensorImpl()->bump_version();
  if (group.memory && group.memory->after_step)
    group.memory->after_step(group.weight.numel());
}

void Optimizer::step(double lr, double grad_scale, ops::AfterRead after_read) {
  begin_step();
  for (size_t i = 0; i < groups_.size(); ++i)
    step_group(i, lr, grad_scale, after_read);
}

void Optimizer::step(
    const std::vector<double>& lrs,
    double grad_scale,
    ops::AfterRead after_read) {
  for (const OptimizerGroup& group : groups_)
    check_has_rate(group, lrs);
  begin_step();
  for (size_t i = 0; i < groups_.size(); ++i)
    step_group(
        i,
        lrs[static_cast<size_t>(groups_[i].param_group)],
        grad_scale,
        after_read);
}

torch::Tensor Optimizer::squared_gradients() const {
  torch::Tensor sum;
  for (const OptimizerGroup& group : groups_) {
    const auto part = ops::sum_of_squares(group.main_grad, kernels_);
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

double Optimizer::sum_of_squared_gradients() const {
  // Read once, whatever device it is on.
  const torch::Tensor sum = squared_gradients();
  return sum.defined() ? sum.item<double>() : 0.0;
}

void Optimizer::reload_masters() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].memory)
      weights_versions_[i] = groups_[i].memory->weights_version;
    if (torch::Tensor low = master(i); low.defined())
      low.zero_();
  }
}

}  // namespace brigade
