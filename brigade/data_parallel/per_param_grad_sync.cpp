#include "brigade/data_parallel/per_param_grad_sync.h"

#include <algorithm>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

const GradSyncOptions& without_buckets(
    const std::vector<Param>& params,
    const GradSyncOptions& options) {
  if (options.sharding != Sharding::kNone ||
      std::any_of(params.begin(), params.end(), [](const Param& param) {
        return param.has_sparse_gradient && param.tensor.requires_grad();
      }))
    throw ConfigError(
        "[data_parallel] sharding and sparse gradients need buckets: use "
        "GradSyncAlgorithm::kBucketed, or turn EmbeddingOptions::sparse off");
  return options;
}

}  // namespace

PerParamGradSync::PerParamGradSync(
    const std::vector<Param>& params,
    CommunicatorPtr all_ranks,
    const GradSyncOptions& options)
    : GradSync(params, std::move(all_ranks), without_buckets(params, options)),
      is_main_grad_(options.handover == GradHandover::kMainGrad),
      has_gradient_(this->params().size()),
      is_shown_(this->params().size()) {
  for (int i = 0; is_main_grad_ && i < int(has_gradient_.size()); ++i)
    grad_of(i) = main_grad(i);
  hooks_ = std::make_unique<GradHooks>(
      params_.trainable(),
      GradHooks::Callbacks{
          [this](int param, Arrival) { before_accumulate(param); },
          [this](int param) { after_accumulate(param); }});
}

void PerParamGradSync::begin_step() {
  end_of_backward_.throw_if_broken_off();
  if (phase_ == Phase::kFinished)
    leave_step();
  if (phase_ == Phase::kIdle) {
    begin_memory_step();
    report_ = {.backward_begin_ns = steady_now_ns()};
    phase_ = Phase::kAccumulating;
  }
  leaves_.throw_if_changed();
}

void PerParamGradSync::leave_step() {
  const torch::NoGradGuard no_grad;
  const bool are_used = handed_.were_used();
  if (are_used && handed_.end_use())
    memory_->zero_main_grads();
  if (!are_used) {
    leaves_.drop_cleared();
    for (size_t i = 0; i < has_gradient_.size(); ++i)
      keep_share(static_cast<int>(i));
  }
  const auto kept = has_gradient_;
  reset();
  if (are_used)
    return;
  has_gradient_ = kept;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] != 0)
      show(static_cast<int>(i));
  }
}

void PerParamGradSync::keep_share(int param) {
  const auto i = static_cast<size_t>(param);
  adopt_shown(param);
  has_gradient_[i] = is_main_grad_ || grad_of(param).defined() ? 1 : 0;
  torch::Tensor sum = main_grad(param);
  sum.mul_(grad_scale() / (mean_scale_of(param) * ranks_with_data(param)));
}

void PerParamGradSync::adopt_shown(int param) {
  const torch::Tensor& grad = grad_of(param);
  torch::Tensor sum = main_grad(param);
  if (!is_main_grad_ && !is_shown_[static_cast<size_t>(param)])
    return;
  if (!grad.defined())
    sum.zero_();
  else if (
      !is_same_memory(grad, sum) &&
      !torch::equal(grad, sum.to(grad.scalar_type())))
    sum.copy_(grad);
  if (is_main_grad_)
    grad_of(param) = sum;
}

void PerParamGradSync::show(int param) {
  const torch::Tensor& sum = main_grad(param);
  grad_of(param) = is_main_grad_
                       ? sum
                       : sum.to(
                             params()[static_cast<size_t>(param)].dtype,
                             false,
                             /*copy=*/true);
  is_shown_[static_cast<size_t>(param)] = true;
  handed_.shown()[static_cast<size_t>(param)].note(grad_of(param));
}

void PerParamGradSync::before_accumulate(int param) {
  begin_step();
  const torch::NoGradGuard no_grad;
  adopt_shown(param);
  if (is_main_grad_)
    return;
  const auto i = static_cast<size_t>(param);
  if (has_gradient_[i] == 0 &&
      handed_.shown()[i].is_replaced_by(grad_of(param))) {
    torch::Tensor(main_grad(param)).copy_(grad_of(param));
    has_gradient_[i] = 1;
  }
  grad_of(param).reset();
}

void PerParamGradSync::after_accumulate(int param) {
  const torch::NoGradGuard no_grad;
  const auto i = static_cast<size_t>(param);
  if (is_main_grad_) {
    adopt_shown(param);
  } else {
    torch::Tensor sum = main_grad(param);
    if (has_gradient_[i] == 0)
      sum.zero_();
    if (grad_of(param).defined())
      sum.add_(grad_of(param));
    show(param);
  }
  has_gradient_[i] = 1;
  if (accumulate_only())
    return;
  phase_ = Phase::kReducing;
  if (options_.finish == FinishMode::kAtEndOfBackward)
    end_of_backward_.call_once([this] { at_backward_end(); });
}

void PerParamGradSync::at_backward_end() {
  if (options_.missing_gradient == MissingGradient::kZero ||
      std::count(has_gradient_.begin(), has_gradient_.end(), 0) == 0)
    reduce_all();
}

void PerParamGradSync::mark_ready(int param) {
  check_is_param(param);
  if (accumulate_only())
    return;
  if (phase_ == Phase::kFinished)
    reset();  // main_grad has another step's gradients
  begin_step();
  phase_ = Phase::kReducing;
  has_gradient_[static_cast<size_t>(param)] = 1;
}

void PerParamGradSync::finish() {
  const bool zeros_count = options_.missing_gradient == MissingGradient::kZero;
  const bool is_again = std::exchange(was_finished_by_hand_, true);
  if (phase_ == Phase::kFinished &&
      !(zeros_count && (is_again || handed_.were_touched())))
    return;
  if ((phase_ != Phase::kReducing && !zeros_count) ||
      (accumulate_only() && phase_ != Phase::kIdle))
    throw ConfigError(
        "[data_parallel] finish() before any backward() outside no_sync(): "
        "call it once a step, after the last micro-batch's backward()");
  begin_step();
  const auto missing = std::find(has_gradient_.begin(), has_gradient_.end(), 0);
  if (missing != has_gradient_.end() && !zeros_count)
    throw ConfigError(
        "[data_parallel] a parameter got no gradient in this step: " +
        params()[static_cast<size_t>(missing - has_gradient_.begin())].name);
  reduce_all();
  was_finished_by_hand_ = true;
}

void PerParamGradSync::reduce_all() {
  const torch::NoGradGuard no_grad;
  report_.backward_end_ns = steady_now_ns();
  report_.ready_ns.assign(has_gradient_.size(), report_.backward_end_ns);
  auto used = has_gradient_;
  if (options_.missing_gradient == MissingGradient::kZero)
    used = max_in_groups(used, params());
  call_before_handover();
  for (size_t i = 0; i < used.size(); ++i)
    reduce(static_cast<int>(i), used[i] != 0);
  phase_ = Phase::kFinished;
  was_finished_by_hand_ = false;
  begin_use();
}

void PerParamGradSync::reduce(int param, bool is_used) {
  const Param& of = params()[static_cast<size_t>(param)];
  torch::Tensor sum = main_grad(param);
  BucketTiming timing{.index = param, .bytes = int64_t(sum.nbytes())};
  timing.ready_ns = timing.launched_ns = timing.wait_begin_ns = steady_now_ns();
  adopt_shown(param);
  if (!is_main_grad_ && has_gradient_[static_cast<size_t>(param)] == 0)
    sum.zero_();
  of.group.ranks->all_reduce(sum)->wait();
  timing.finished_ns = timing.wait_end_ns = steady_now_ns();
  report_.buckets.push_back(timing);
  sum.mul_(mean_scale_of(param) / grad_scale());
  if (is_used || is_main_grad_)
    show(param);
  else
    grad_of(param).reset();
}

void PerParamGradSync::reset() {
  handed_.forget();
  std::fill(has_gradient_.begin(), has_gradient_.end(), 0);
  is_shown_.assign(is_shown_.size(), false);
  end_of_backward_.forget();
  phase_ = Phase::kIdle;
}

}  // namespace brigade
