#include "brigade/optim/adamw.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/error.h"

namespace brigade {
namespace {

void check(const AdamWGroup& group) {
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
          "[adamw] group '{}': weight is {} of {} elements, main_grad {} of "
          "{}; expected flat contiguous tensors of equal length, bf16 or "
          "float32, and float32",
          group.name,
          c10::toString(dtype),
          group.weight.numel(),
          c10::toString(group.main_grad.scalar_type()),
          group.main_grad.numel()));
}

}  // namespace

AdamW::AdamW(std::vector<AdamWGroup> groups, AdamWOptions options)
    : groups_(std::move(groups)), options_(options) {
  const torch::NoGradGuard no_grad;
  for (AdamWGroup& group : groups_) {
    group.weight = group.weight.detach();
    check(group);
    states_.push_back(
        {group.weight.scalar_type() == torch::kFloat
             ? torch::Tensor()
             : torch::zeros_like(
                   group.weight, group.weight.options().dtype(torch::kShort)),
         torch::zeros_like(group.main_grad),
         torch::zeros_like(group.main_grad)});
    weights_versions_.push_back(
        group.memory ? group.memory->weights_version : 0);
  }
}

void AdamW::follow_memory() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    const AdamWGroup& group = groups_[i];
    if (!group.memory)
      continue;
    if (!group.memory->is_current) {
      throw ConfigError(fmt::format(
          "[adamw] group '{}': its gradients and weights were moved to other "
          "memory after this optimizer was made (BucketOrder::kObserved plans "
          "anew after the first step); make it anew by make_adamw(), after "
          "the first backward at the earliest",
          group.name));
    }
    if (group.memory->weights_version == weights_versions_[i])
      continue;
    weights_versions_[i] = group.memory->weights_version;
    if (states_[i].master_low.defined())
      states_[i].master_low.zero_();
  }
}

void AdamW::begin_step() {
  follow_memory();
  ++steps_;
}

void AdamW::step_group(
    size_t index,
    double lr,
    double grad_scale,
    ops::AfterRead after_read) {
  const AdamWGroup& group = groups_.at(index);
  const AdamWState& state = states_[index];
  ops::adamw_step(
      {.lr = lr,
       .beta1 = options_.beta1,
       .beta2 = options_.beta2,
       .eps = options_.eps,
       .weight_decay = group.weight_decay,
       .step = steps_,
       .grad_scale = grad_scale,
       .kernels = options_.kernels},
      group.main_grad,
      state.exp_avg,
      state.exp_avg_sq,
      group.weight,
      state.master_low,
      after_read);
  // The kernel writes through pointers: who watches versions must see that
  // weights were stepped and gradients cleared.
  group.weight.unsafeGetTensorImpl()->bump_version();
  if (after_read == ops::AfterRead::kZero)
    group.main_grad.unsafeGetTensorImpl()->bump_version();
}

void AdamW::step(double lr, double grad_scale, ops::AfterRead after_read) {
  begin_step();
  for (size_t i = 0; i < groups_.size(); ++i)
    step_group(i, lr, grad_scale, after_read);
}

torch::Tensor AdamW::squared_gradients() const {
  torch::Tensor sum;
  for (const AdamWGroup& group : groups_) {
    const auto part = ops::sum_of_squares(group.main_grad, options_.kernels);
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

double AdamW::sum_of_squared_gradients() const {
  // Read once, whatever device it is on.
  const torch::Tensor sum = squared_gradients();
  return sum.defined() ? sum.item<double>() : 0.0;
}

void AdamW::reload_masters() {
  for (AdamWState& state : states_) {
    if (state.master_low.defined())
      state.master_low.zero_();
  }
}

}  // namespace brigade
