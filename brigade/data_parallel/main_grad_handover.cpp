#include <algorithm>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/data_parallel/handover.h"

namespace brigade {
namespace {

// .grad is main_grad at all times, unless the user cleared it to none or
// autograd replaced it: backward(create_graph) writes the sum elsewhere.
class MainGradHandover : public Handover {
 public:
  explicit MainGradHandover(HandoverParts parts) : Handover(std::move(parts)) {
    MainGradHandover::follow_memory();
  }

  // With sharding only the owner has the sum.
  bool keep_share(int param, int ranks) override {
    if (divides_gradients(memory().sharding()))
      return true;
    settle(param);
    const double share = memory().sharding() == Sharding::kNone
                             ? given_scale_ / (mean_scale_of(param) * ranks)
                             : 1.0 / factor_of(param);
    if (share == 1.0)
      return true;
    if (has_fused_) {
      throw UsageError(
          "[data_parallel] backward() was called twice before the optimizer "
          "used the gradients, and fused ops (WeightGrad::kAccumulate) have "
          "added to those that are reduced: put all but the step's last "
          "micro-batch under no_sync(), clear them with zero_main_grads() or "
          "drop them with reset()");
    }
    main_grad_of(param).mul_(share);
    return true;
  }
  void note_fused() override { has_fused_ = true; }

  void before_accumulate(int /*param*/, GradPart /*part*/) override {}

  void after_accumulate(int param, GradPart /*part*/) override {
    settle(param);
  }

  void after_last(int param, GradPart /*part*/) override {
    MainGradHandover::finalize(param);
  }

  void finalize(int param) override {
    settle(param);
    MainGradHandover::finalize_by_hand(param);
  }
  void finalize_by_hand(int param) override {
    if (factor_of(param) != 1.0)
      main_grad_of(param).mul_(factor_of(param));
  }
  // main_grad is zero already: the optimizer that read the last step's
  // gradients has cleared them.
  void finalize_missing(int param) override { settle(param); }

  void give(int /*param*/, GradUse /*use*/) override {
    given_scale_ = mean_scale();
    MainGradHandover::note_untouched();
  }

  void follow_memory() override {
    for (int param = 0; param < static_cast<int>(params().size()); ++param)
      grad_of(param) = main_grad_of(param);
  }

  GradClearing clearing() const override {
    const auto is_none = [](const Param& param) {
      return !param.tensor.grad().defined();
    };
    if (std::all_of(params().begin(), params().end(), is_none))
      return GradClearing::kAll;
    const bool is_any = std::any_of(params().begin(), params().end(), is_none);
    return is_any || memory().version_of_gradients() != untouched_version_
               ? GradClearing::kSome
               : GradClearing::kNone;
  }

  void note_untouched() override {
    untouched_version_ = memory().version_of_gradients();
  }

 private:
  double factor_of(int param) const {
    return mean_scale_of(param) / mean_scale();
  }

  // .grad is the step's sum wherever it lies; if undefined, it was cleared.
  void settle(int param) {
    torch::Tensor& grad = grad_of(param);
    const torch::Tensor& main_grad = main_grad_of(param);
    if (grad.defined() && is_same_memory(grad, main_grad))
      return;
    if (grad.defined())
      main_grad.copy_(grad);
    else
      main_grad.zero_();
    grad = main_grad;
  }

  double given_scale_ = 1;  // of the optimizer
  bool has_fused_ = false;
  int64_t untouched_version_ = -1;
};

}  // namespace

std::unique_ptr<Handover> make_main_grad_handover(HandoverParts parts) {
  return std::make_unique<MainGradHandover>(std::move(parts));
}

}  // namespace brigade
