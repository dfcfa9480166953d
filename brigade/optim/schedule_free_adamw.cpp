#include "brigade/optim/schedule_free_adamw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "brigade/base/error.h"

namespace brigade {
namespace {

constexpr const char* kZ = "z";  // the state's name

std::string name_of(const char* what, size_t group) {
  return fmt::format("{}.{}", what, group);
}

}  // namespace

ScheduleFreeAdamW::ScheduleFreeAdamW(
    std::vector<OptimizerGroup> groups,
    const Options& options)
    : Optimizer(
          std::move(groups),
          {.kind = OptimizerKind::kScheduleFreeAdamW,
           .adamw = options.adamw,
           .schedule_free = options.schedule_free}) {
  if (options.adamw.beta1 == 0)
    throw ConfigError(
        "[optimizer] schedule-free AdamW with beta1 = 0 does not say what the "
        "average of the weights is; set it above 0");
}

void ScheduleFreeAdamW::begin(const std::vector<double>& rates) {
  averages_.resize(std::max(averages_.size(), rates.size()));
  for (size_t i = 0; i < rates.size(); ++i) {
    Average& average = averages_[i];
    average.highest_rate = std::max(average.highest_rate, rates[i]);
    const double weight =
        std::pow(
            static_cast<double>(steps()), options().schedule_free.step_power) *
        std::pow(average.highest_rate, options().schedule_free.rate_power);
    average.sum += weight;
    average.share = average.sum > 0 ? weight / average.sum : 0;
  }
}

void ScheduleFreeAdamW::step_range(const StepRange& range) {
  const torch::NoGradGuard no_grad;
  const AdamWOptions& adamw = options().adamw;
  const auto group = static_cast<size_t>(range.group.param_group);
  const double c = averages_[std::min(group, averages_.size() - 1)].share;
  torch::Tensor z = range.group.states[0].tensor;
  torch::Tensor exp_avg_sq = range.group.states[1].tensor;
  const double correction =
      1 - std::pow(adamw.beta2, static_cast<double>(range.step));
  change_master(range, [&](torch::Tensor y) {
    if (range.step == 1)
      z.copy_(y);
    torch::Tensor d = range.group.main_grad * range.grad_scale;
    exp_avg_sq.mul_(adamw.beta2).addcmul_(d, d, 1 - adamw.beta2);
    d.div_((exp_avg_sq / correction).sqrt_().add_(adamw.eps));
    if (range.group.rule.weight_decay != 0)
      d.add_(y, range.group.rule.weight_decay);
    y.lerp_(z, c).add_(d, range.lr * (adamw.beta1 * (1 - c) - 1));
    z.sub_(d, range.lr);
  });
  if (range.after_read == ops::AfterRead::kZero)
    range.group.main_grad.zero_();
}

torch::Tensor ScheduleFreeAdamW::average(
    const torch::Tensor& master,
    const std::vector<State>& states) const {
  const torch::Tensor z = find_state(states, kZ);
  return steps() > 0 && z.defined()
             ? master.lerp(z, 1 - 1 / options().adamw.beta1)
             : master.clone();
}

std::map<std::string, double> ScheduleFreeAdamW::scalars() const {
  std::map<std::string, double> result;
  for (size_t i = 0; i < averages_.size(); ++i) {
    result[name_of("highest_rate", i)] = averages_[i].highest_rate;
    result[name_of("sum_of_weights", i)] = averages_[i].sum;
  }
  return result;
}

void ScheduleFreeAdamW::set_scalars(
    const std::map<std::string, double>& scalars) {
  averages_.clear();
  for (size_t i = 0; scalars.contains(name_of("highest_rate", i)); ++i)
    averages_.push_back(
        {.highest_rate = scalars.at(name_of("highest_rate", i)),
         .sum = scalars.at(name_of("sum_of_weights", i))});
}

}  // namespace brigade
