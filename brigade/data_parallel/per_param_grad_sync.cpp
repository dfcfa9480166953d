// GradSync with an all-reduce per parameter, after backward: the tests' oracle.
#include <algorithm>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/data_parallel/check_params.h"
#include "brigade/data_parallel/grad_sync.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

class PerParamGradSync : public GradSync {
 public:
  PerParamGradSync(
      const std::vector<Param>& params,
      CommunicatorPtr all_ranks,
      const GradSyncOptions& options)
      : GradSync(params, std::move(all_ranks), options),
        is_main_grad_(options.handover == GradHandover::kMainGrad),
        has_gradient_(this->params().size()),
        hooks_(
            params_.trained(),
            {[this](int param, Arrival) {
               enter_step();
               const torch::NoGradGuard no_grad;
               take(size_t(param));
             },
             [this](int param) { after_accumulate(size_t(param)); }}) {
    for (size_t i = 0; is_main_grad_ && i < has_gradient_.size(); ++i)
      show(i);
  }

  void reset() override {
    handed_.forget();
    std::fill(has_gradient_.begin(), has_gradient_.end(), 0);
    end_of_backward_.forget();
    phase_ = Phase::kIdle;
  }
  const SyncReport& report() const override { return report_; }

 private:
  torch::Tensor& grad_of(size_t i) { return params()[i].tensor.mutable_grad(); }
  torch::Tensor sum_of(size_t i) { return memory().main_grad(int(i)); }
  // Sets the sum to .grad(); to zero if that is none, or only the last step's.
  void take(size_t i) {
    torch::Tensor& grad = grad_of(i);
    const bool is_users = !is_main_grad_ && has_gradient_[i] == 0;
    if (is_users && progress_.of(int(i)).shown.is_replaced_by(grad))
      sum_of(i).copy_(grad);
    else if (is_users || !grad.defined())
      sum_of(i).zero_();
    else if (is_main_grad_ || !torch::equal(grad, sum_of(i).to(grad.dtype())))
      sum_of(i).copy_(grad);
    grad = is_main_grad_ ? sum_of(i) : torch::Tensor();
  }
  // Sets .grad() to the sum.
  void show(size_t i) {
    const auto dtype = params()[i].dtype;
    grad_of(i) = is_main_grad_ ? sum_of(i) : sum_of(i).to(dtype, false, true);
    progress_.of(int(i)).shown.note(grad_of(i));
  }

  void after_accumulate(size_t i) {
    const torch::NoGradGuard no_grad;
    if (has_gradient_[i] == 2)
      throw UsageError("[data_parallel] the last step was not finished");
    if (is_main_grad_)
      take(i);
    else if (grad_of(i).defined())
      sum_of(i).add_(grad_of(i));
    take_by_hand(int(i));
    if (!accumulate_only())
      end_of_backward_.call_once([this] {
        std::ranges::replace(has_gradient_, 1, 2);
        if (options_.finish == FinishMode::kAtEndOfBackward &&
            (zeros_count() || std::ranges::count(has_gradient_, 0) == 0))
          reduce_step();
      });
  }
  void take_by_hand(int param) override {
    show(size_t(param));
    has_gradient_[size_t(param)] = 1;
    if (!accumulate_only())
      begin_reducing();
  }
  void begin_reducing() {
    if (std::exchange(phase_, Phase::kReducing) != Phase::kReducing)
      report_ = {.backward_begin_ns = steady_now_ns()};
  }

  void reduce_step() override {
    const torch::NoGradGuard no_grad;
    leaves_.throw_if_changed();
    begin_reducing();
    const auto missing = std::ranges::find(has_gradient_, 0);
    if (missing != has_gradient_.end() && !zeros_count())
      throw UsageError(
          "[data_parallel] a parameter got no gradient in this step: " +
          params()[size_t(missing - has_gradient_.begin())].name);
    report_.backward_end_ns = steady_now_ns();
    report_.ready_ns.assign(has_gradient_.size(), report_.backward_end_ns);
    const auto used =
        zeros_count() ? max_in_groups(has_gradient_, params()) : has_gradient_;
    call_before_handover();
    for (size_t i = 0; i < used.size(); ++i) {
      if (!is_main_grad_ && has_gradient_[i] == 0)
        grad_of(i).reset();
      take(i);
      const int64_t begin = steady_now_ns();
      params()[i].group->all_reduce(sum_of(i))->wait();
      const int64_t end = steady_now_ns();
      report_.buckets.push_back(
          {int(i), int64_t(sum_of(i).nbytes()), begin, begin, end, begin, end});
      sum_of(i).mul_(mean_scale_of(int(i)) / grad_scale());
      if (used[i] != 0 || is_main_grad_)
        show(i);
    }
    set_finished();
    begin_use();
  }

  void keep_gradients() override {
    for (size_t i = 0; i < has_gradient_.size(); ++i) {
      has_gradient_[i] = is_main_grad_ || grad_of(i).defined() ? 1 : 0;
      take(i);
      sum_of(i).mul_(
          grad_scale() / (mean_scale_of(int(i)) * ranks_with_data(int(i))));
      if (has_gradient_[i] != 0)
        show(i);
    }
  }

  const bool is_main_grad_;            // .grad() is the sum
  std::vector<int64_t> has_gradient_;  // 1; 2: of a backward that has ended
  SyncReport report_;
  GradHooks hooks_;  // last: gone before what it calls
};

}  // namespace

std::unique_ptr<GradSync> make_per_param_grad_sync(
    const std::vector<Param>& params,
    CommunicatorPtr all_ranks,
    const GradSyncOptions& options) {
  return std::make_unique<PerParamGradSync>(
      params, std::move(all_ranks), options);
}

}  // namespace brigade
