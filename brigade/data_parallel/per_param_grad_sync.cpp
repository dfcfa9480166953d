#include "brigade/data_parallel/per_param_grad_sync.h"

#include <algorithm>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

GradSyncOptions per_param_options(
    const std::vector<Param>& params,
    const GradSyncOptions& options) {
  for (const Param& param : params) {
    if (options.sharding != Sharding::kNone || param.has_sparse_gradient)
      throw ConfigError(
          "[data_parallel] sharding and sparse gradients need buckets: use "
          "GradSyncAlgorithm::kBucketed, or turn EmbeddingOptions::sparse off");
  }
  return options;
}

}  // namespace

PerParamGradSync::PerParamGradSync(
    const std::vector<Param>& params,
    CommunicatorPtr all_ranks,
    const GradSyncOptions& options)
    : GradSync(
          params,
          std::move(all_ranks),
          per_param_options(params, options)),
      has_gradient_(this->params().size()) {
  auto tensors = params_.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (options.handover == GradHandover::kMainGrad)
      tensors[i].mutable_grad() = main_grad(static_cast<int>(i));
  }
  hooks_ = std::make_unique<GradHooks>(
      tensors,
      GradHooks::Callbacks{
          [this](int param, Arrival) { before_accumulate(param); },
          [this](int param) { after_accumulate(param); }});
}

void PerParamGradSync::begin_step() {
  if (phase_ == Phase::kFinished) {
    const bool are_used = were_used();
    if (!are_used && params().front().tensor.grad().defined())
      throw ConfigError(
          "[data_parallel] a backward() on top of gradients that no optimizer "
          "has used needs GradSyncAlgorithm::kBucketed");
    if (are_used && end_use())
      buffer_->zero_main_grads();
    reset();
  }
  if (phase_ != Phase::kIdle)
    return;
  begin_memory_step();
  report_ = {.backward_begin_ns = steady_now_ns()};
  phase_ = Phase::kAccumulating;
}

void PerParamGradSync::before_accumulate(int param) {
  begin_step();
  if (options_.handover == GradHandover::kParamDtype)
    params_.tensors()[static_cast<size_t>(param)].mutable_grad().reset();
}

void PerParamGradSync::after_accumulate(int param) {
  const torch::NoGradGuard no_grad;
  const auto i = static_cast<size_t>(param);
  torch::Tensor& grad = params_.tensors()[i].mutable_grad();
  torch::Tensor sum = main_grad(param);
  const bool is_main_grad = options_.handover == GradHandover::kMainGrad;
  const bool is_first = std::exchange(has_gradient_[i], 1) == 0;
  if (!is_main_grad && is_first)
    sum.zero_();
  if (!is_main_grad && grad.defined())
    sum.add_(grad);
  else if (is_main_grad && !(grad.defined() && is_same_memory(grad, sum)))
    sum.copy_(grad.defined() ? grad : torch::zeros_like(sum));
  grad = is_main_grad ? sum : torch::Tensor();
  if (accumulate_only_)
    return;
  phase_ = Phase::kReducing;
  if (options_.finish == FinishMode::kExplicit ||
      std::exchange(waits_for_end_, true))
    return;
  at_end_of_backward([this] {
    waits_for_end_ = false;
    if (options_.missing_gradient == MissingGradient::kZero ||
        std::count(has_gradient_.begin(), has_gradient_.end(), 0) == 0)
      reduce_all();
  });
}

void PerParamGradSync::mark_ready(int param) {
  check_is_param(param);
  if (accumulate_only_)
    return;
  begin_step();
  phase_ = Phase::kReducing;
  has_gradient_[static_cast<size_t>(param)] = 1;
}

void PerParamGradSync::finish() {
  const bool zeros_count = options_.missing_gradient == MissingGradient::kZero;
  const bool is_again = std::exchange(was_finished_by_hand_, true);
  if (phase_ == Phase::kFinished && !(zeros_count && is_again))
    return;
  if ((phase_ != Phase::kReducing && !zeros_count) ||
      (accumulate_only_ && phase_ != Phase::kIdle))
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
  const bool is_main_grad = options_.handover == GradHandover::kMainGrad;
  if (!is_main_grad && has_gradient_[static_cast<size_t>(param)] == 0)
    sum.zero_();
  of.group.ranks->all_reduce(sum)->wait();
  timing.finished_ns = timing.wait_end_ns = steady_now_ns();
  report_.buckets.push_back(timing);
  sum.mul_(mean_scale_of(param) / grad_scale());
  if (!is_main_grad)
    torch::Tensor(of.tensor).mutable_grad() =
        is_used ? sum.to(of.tensor.scalar_type(), false, /*copy=*/true)
                : torch::Tensor();
}

void PerParamGradSync::reset() {
  writes_.end();
  std::fill(has_gradient_.begin(), has_gradient_.end(), 0);
  waits_for_end_ = false;
  phase_ = Phase::kIdle;
}

}  // namespace brigade
