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
        return param.has_sparse_gradient;
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
      has_gradient_(this->params().size()) {
  for (int i = 0; is_main_grad_ && i < int(has_gradient_.size()); ++i)
    grad_of(i) = main_grad(i);
  hooks_ = std::make_unique<GradHooks>(
      params_.tensors(),
      GradHooks::Callbacks{
          [this](int param, Arrival) {
            begin_step();
            if (!is_main_grad_)
              grad_of(param).reset();
          },
          [this](int param) { after_accumulate(param); }});
}

void PerParamGradSync::begin_step() {
  if (phase_ == Phase::kFinished) {
    if (!were_used() && grad_of(0).defined())
      throw ConfigError(
          "[data_parallel] a backward() on top of gradients that no optimizer "
          "has used needs GradSyncAlgorithm::kBucketed");
    if (were_used() && end_use())
      buffer_->zero_main_grads();
    reset();
  }
  if (phase_ != Phase::kIdle)
    return;
  begin_memory_step();
  report_ = {.backward_begin_ns = steady_now_ns()};
  phase_ = Phase::kAccumulating;
}

void PerParamGradSync::after_accumulate(int param) {
  const torch::NoGradGuard no_grad;
  torch::Tensor& grad = grad_of(param);
  torch::Tensor sum = main_grad(param);
  const bool is_first = std::exchange(has_gradient_[size_t(param)], 1) == 0;
  if (!is_main_grad_) {
    if (is_first)
      sum.zero_();
    if (grad.defined())
      sum.add_(grad);
    grad.reset();
  } else if (!grad.defined() || !is_same_memory(grad, sum)) {
    sum.copy_(grad.defined() ? grad : torch::zeros_like(sum));
    grad = sum;
  }
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
  for (int i = 0; i < int(used.size()); ++i) {
    const Param& param = params()[size_t(i)];
    torch::Tensor sum = main_grad(i);
    BucketTiming timing{.index = i, .bytes = int64_t(sum.nbytes())};
    timing.ready_ns = timing.launched_ns = timing.wait_begin_ns =
        steady_now_ns();
    if (!is_main_grad_ && has_gradient_[size_t(i)] == 0)
      sum.zero_();
    param.group.ranks->all_reduce(sum)->wait();
    timing.finished_ns = timing.wait_end_ns = steady_now_ns();
    report_.buckets.push_back(timing);
    sum.mul_(mean_scale_of(i) / grad_scale());
    if (!is_main_grad_)
      grad_of(i) = used[size_t(i)] == 0 ? torch::Tensor()
                                        : sum.to(
                                              param.tensor.scalar_type(),
                                              /*non_blocking=*/false,
                                              /*copy=*/true);
  }
  phase_ = Phase::kFinished;
  was_finished_by_hand_ = false;
  begin_use();
}

void PerParamGradSync::reset() {
  writes_.end();
  std::fill(has_gradient_.begin(), has_gradient_.end(), 0);
  waits_for_end_ = false;
  phase_ = Phase::kIdle;
}

}  // namespace brigade
