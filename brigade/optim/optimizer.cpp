#include "brigade/optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/ops/split_master.h"

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

// Undefined: there is none.
torch::Tensor state_named(
    const std::vector<State>& states,
    std::string_view name) {
  for (const State& state : states) {
    if (state.name == name)
      return state.tensor;
  }
  return {};
}

// In float32; a float32 weight itself.
torch::Tensor master_of(const StepRange& range) {
  return range.master_low.defined()
             ? ops::join_master(range.group.weight, range.master_low)
             : range.group.weight;
}

}  // namespace

void change_master(
    const StepRange& range,
    const std::function<void(torch::Tensor master)>& change) {
  const torch::NoGradGuard no_grad;
  if (!range.master_low.defined()) {
    change(range.group.weight);
    return;
  }
  const torch::Tensor master = master_of(range);
  change(master);
  ops::split_master(master, range.group.weight, range.master_low);
}

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

torch::Tensor Optimizer::master_low(size_t group) const {
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
          "other memory after this optimizer was made (its DataParallel is "
          "gone, or BucketOrder::kObserved has planned anew after the first "
          "step); make it anew, with kObserved after the first backward at the "
          "earliest",
          group.name));
    }
    if (group.memory->before_step)
      group.memory->before_step();
    if (group.memory->weights_version == weights_versions_[i])
      continue;
    weights_versions_[i] = group.memory->weights_version;
    if (torch::Tensor low = master_low(i); low.defined())
      low.zero_();
  }
}

void Optimizer::begin_step(const std::vector<double>& lrs) {
  if (!hidden_.empty())
    throw ConfigError(
        "[optim] a step while the averages have the weights' place: call "
        "hide_averages() first");
  follow_memory();
  ++steps_;
  begin(lrs);
}

StepRange Optimizer::range_of(
    size_t group,
    double lr,
    double grad_scale,
    ops::AfterRead after_read) const {
  return {
      .index = group,
      .group = groups_.at(group),
      .states = states_[group],
      .master_low = master_low(group),
      .lr = lr * groups_[group].rule.rate,
      .grad_scale = grad_scale,
      .step = steps_,
      .after_read = after_read};
}

// Kernels write through pointers: who watches versions must see that weights
// were stepped and gradients cleared.
void Optimizer::note_stepped(const StepRange& range) const {
  const OptimizerGroup& group = range.group;
  group.weight.unsafeGetTensorImpl()->bump_version();
  if (range.after_read == ops::AfterRead::kZero)
    group.main_grad.unsafeGetTensorImpl()->bump_version();
  if (group.memory && group.memory->after_step)
    group.memory->after_step(group.weight.numel());
}

void Optimizer::step_in_parts(const StepRange& range) {
  const int64_t numel = range.group.weight.numel();
  if (numel <= max_numel()) {
    step_range(range);
    return;
  }
  for (int64_t begin = 0; begin < numel; begin += max_numel()) {
    const auto part = [&](const torch::Tensor& of) {
      return of.defined()
                 ? of.narrow(0, begin, std::min(max_numel(), numel - begin))
                 : of;
    };
    const OptimizerGroup group{
        .name = range.group.name,
        .weight = part(range.group.weight),
        .main_grad = part(range.group.main_grad),
        .rule = range.group.rule,
        .param_group = range.group.param_group};
    std::vector<State> states;
    for (const State& state : range.states)
      states.push_back({state.name, part(state.tensor)});
    step_range(
        {.index = range.index,
         .group = group,
         .states = states,
         .master_low = part(range.master_low),
         .lr = range.lr,
         .grad_scale = range.grad_scale,
         .step = range.step,
         .after_read = range.after_read});
  }
}

void Optimizer::step_ranges(const std::vector<StepRange>& ranges) {
  for (const StepRange& range : ranges)
    step_in_parts(range);
}

void Optimizer::step_group(
    size_t index,
    double lr,
    double grad_scale,
    ops::AfterRead after_read) {
  const StepRange range = range_of(index, lr, grad_scale, after_read);
  begin_average(range);
  step_in_parts(range);
  update_average(range);
  note_stepped(range);
}

void Optimizer::step(double lr, double grad_scale, ops::AfterRead after_read) {
  begin_step({lr});
  std::vector<StepRange> ranges;
  for (size_t i = 0; i < groups_.size(); ++i)
    ranges.push_back(range_of(i, lr, grad_scale, after_read));
  step_all(ranges);
}

void Optimizer::step(
    const std::vector<double>& lrs,
    double grad_scale,
    ops::AfterRead after_read) {
  for (const OptimizerGroup& group : groups_)
    check_has_rate(group, lrs);
  begin_step(lrs);
  std::vector<StepRange> ranges;
  for (size_t i = 0; i < groups_.size(); ++i)
    ranges.push_back(range_of(
        i,
        lrs[static_cast<size_t>(groups_[i].param_group)],
        grad_scale,
        after_read));
  step_all(ranges);
}

void Optimizer::step_all(const std::vector<StepRange>& ranges) {
  for (const StepRange& range : ranges)
    begin_average(range);
  step_ranges(ranges);
  for (const StepRange& range : ranges) {
    update_average(range);
    note_stepped(range);
  }
}

void Optimizer::keep_average(double decay) {
  options_.ema_decay = decay;
  for (size_t i = 0; i < groups_.size(); ++i) {
    std::vector<State>& states = states_[i];
    const bool has_low = has_master(groups_[i].weight.scalar_type());
    states.insert(
        states.end() - (has_low ? 1 : 0),
        zero_state({kEma}, groups_[i].weight));
  }
}

void Optimizer::begin_average(const StepRange& range) const {
  if (options_.ema_decay > 0 && range.step == 1)
    torch::Tensor(state_named(range.states, kEma)).copy_(master_of(range));
}

void Optimizer::update_average(const StepRange& range) const {
  const torch::NoGradGuard no_grad;
  if (options_.ema_decay > 0)
    torch::Tensor(state_named(range.states, kEma))
        .lerp_(master_of(range), 1 - options_.ema_decay);
}

torch::Tensor Optimizer::average(
    const torch::Tensor& master,
    const std::vector<State>& states) const {
  const torch::Tensor ema = state_named(states, kEma);
  return ema.defined() && steps_ > 0 ? ema : master;
}

void Optimizer::show_averages() {
  if (!averages_weights() || !hidden_.empty())
    return;
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const StepRange range = range_of(i, 0, 1, ops::AfterRead::kKeep);
    hidden_.push_back({"weight", range.group.weight.clone()});
    hidden_.push_back(
        {kMasterLow,
         range.master_low.defined() ? range.master_low.clone()
                                    : torch::Tensor()});
    change_master(range, [&](torch::Tensor master) {
      master.copy_(average(master, range.states));
    });
  }
}

void Optimizer::hide_averages() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; 2 * i < hidden_.size(); ++i) {
    torch::Tensor(groups_[i].weight).copy_(hidden_[2 * i].tensor);
    if (torch::Tensor low = master_low(i); low.defined())
      low.copy_(hidden_[2 * i + 1].tensor);
  }
  hidden_.clear();
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
    if (torch::Tensor low = master_low(i); low.defined())
      low.zero_();
  }
}

}  // namespace brigade
