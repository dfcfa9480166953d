#include "brigade/data_parallel/step_in_backward.h"

#include <fmt/format.h>
#include <torch/optim/lbfgs.h>

#include <unordered_set>
#include <utility>

#include "brigade/base/error.h"

namespace brigade {
namespace {

class TorchBucketStep : public BucketStep {
 public:
  TorchBucketStep(
      GradSync& sync,
      torch::optim::Optimizer& optimizer,
      std::function<void(const torch::Tensor& param)> before_step)
      : sync_(&sync),
        optimizer_(&optimizer),
        before_step_(std::move(before_step)) {}

  void begin() override {}

  void step(const ReducedBucket& bucket) override {
    std::unordered_set<const void*> stepped;
    for (const int index : bucket.params) {
      const auto& param = sync_->params()[static_cast<size_t>(index)].tensor;
      stepped.insert(param.unsafeGetTensorImpl());
      if (before_step_)
        before_step_(param);
    }
    // The others' gradients are not reduced yet; torch::optim passes over
    // parameters that have none.
    std::vector<std::pair<torch::Tensor, torch::Tensor>> hidden;
    for (auto& group : optimizer_->param_groups()) {
      for (torch::Tensor& param : group.params()) {
        if (stepped.count(param.unsafeGetTensorImpl()) == 0 &&
            param.grad().defined())
          hidden.emplace_back(param, std::exchange(param.mutable_grad(), {}));
      }
    }
    optimizer_->step();
    for (auto& [param, grad] : hidden)
      param.mutable_grad() = grad;
    for (const int index : bucket.params) {
      auto param = sync_->params()[static_cast<size_t>(index)].tensor;
      param.mutable_grad().reset();
    }
  }

 private:
  GradSync* sync_;
  torch::optim::Optimizer* optimizer_;
  std::function<void(const torch::Tensor& param)> before_step_;
};

class AdamWBucketStep : public BucketStep {
 public:
  AdamWBucketStep(GradSync& sync, AdamW& optimizer, double lr)
      : sync_(&sync), optimizer_(&optimizer), lr_(lr) {}

  void begin() override { optimizer_->begin_step(); }

  void step(const ReducedBucket& bucket) override {
    optimizer_->step_group(
        static_cast<size_t>(bucket.segment),
        lr_,
        sync_->grad_scale(),
        ops::AfterRead::kZero);
    // Of a backward that still needs the old values, autograd then says so.
    for (const int index : bucket.params)
      sync_->params()[static_cast<size_t>(index)]
          .tensor.unsafeGetTensorImpl()
          ->bump_version();
  }

 private:
  GradSync* sync_;
  AdamW* optimizer_;
  double lr_;
};

// One optimizer steps in backward, so that whatever it lacks stays as it is.
void check_steps_all(const GradSync& sync, torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> stepped;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& param : group.params())
      stepped.insert(param.unsafeGetTensorImpl());
  }
  for (const NamedParam& param : sync.params()) {
    if (stepped.count(param.tensor.unsafeGetTensorImpl()) == 0) {
      throw ConfigError(fmt::format(
          "[data_parallel] an optimizer that steps in backward lacks '{}', "
          "which would never be stepped: give it all parameters (in groups "
          "where options differ), freeze that one before wrapping, or step "
          "after backward",
          param.name));
    }
  }
}

bool is_made_for(const AdamW& optimizer, const GradSync& sync) {
  const auto& groups = optimizer.groups();
  const auto& segments = sync.segments();
  if (groups.size() != segments.size())
    return false;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!is_same_memory(groups[i].main_grad, segments[i].owned_main_grad()))
      return false;
  }
  return true;
}

}  // namespace

BucketStepPtr make_bucket_step(
    GradSync& sync,
    torch::optim::Optimizer& optimizer,
    std::function<void(const torch::Tensor& param)> before_step) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw ConfigError(
        "[data_parallel] LBFGS steps all parameters at once, and cannot step "
        "in backward; call its step() after backward()");
  }
  if (sync.options().handover == GradHandover::kMainGrad) {
    throw ConfigError(
        "[data_parallel] torch::optim steps in backward over .grad: wrap with "
        "handover = GradHandover::kParamDtype, or step make_adamw()'s AdamW");
  }
  check_steps_all(sync, optimizer);
  return std::make_shared<TorchBucketStep>(
      sync, optimizer, std::move(before_step));
}

BucketStepPtr make_bucket_step(GradSync& sync, AdamW& optimizer, double lr) {
  if (sync.options().handover != GradHandover::kMainGrad ||
      !is_made_for(optimizer, sync)) {
    throw ConfigError(
        "[data_parallel] an AdamW that steps in backward is over this module's "
        "buckets: make it by make_adamw(model.sync(), ...)");
  }
  if (sync.options().order == BucketOrder::kObserved) {
    throw ConfigError(
        "[data_parallel] an AdamW that steps in backward with order = "
        "kObserved: the first step moves the memory that it steps; set order = "
        "BucketOrder::kReverse");
  }
  return std::make_shared<AdamWBucketStep>(sync, optimizer, lr);
}

}  // namespace brigade
