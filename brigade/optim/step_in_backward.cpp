#include "brigade/optim/step_in_backward.h"

#include <fmt/format.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/optim/optimizer_groups.h"

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

  void step(size_t /*segment*/, const std::vector<int>& params) override {
    std::unordered_set<const void*> stepped;
    for (const int index : params) {
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
    for (const int index : params) {
      auto param = sync_->params()[static_cast<size_t>(index)].tensor;
      param.mutable_grad().reset();
    }
  }

 private:
  GradSync* sync_;
  torch::optim::Optimizer* optimizer_;
  std::function<void(const torch::Tensor& param)> before_step_;
};

class OwnedBucketStep : public BucketStep {
 public:
  // All groups of the optimizer are in `sync`; lrs: by parameter group.
  OwnedBucketStep(GradSync& sync, Optimizer& optimizer, std::vector<double> lrs)
      : sync_(&sync),
        optimizer_(&optimizer),
        groups_(sync.segments().size()),
        lrs_(std::move(lrs)) {
    for (size_t g = 0; g < optimizer.groups().size(); ++g)
      groups_[*sync.memory().segment_of(optimizer.groups()[g].weight)]
          .push_back(g);
  }

  void begin() override { optimizer_->begin_step(lrs_); }

  void step(size_t segment, const std::vector<int>& params) override {
    for (const size_t group : groups_[segment])
      optimizer_->step_group(
          group,
          lrs_[static_cast<size_t>(optimizer_->groups()[group].param_group)],
          sync_->grad_scale(),
          ops::AfterRead::kZero);
    // If a backward still needs the old values, autograd then reports it.
    for (const int index : params)
      sync_->params()[static_cast<size_t>(index)]
          .tensor.unsafeGetTensorImpl()
          ->bump_version();
  }

 private:
  GradSync* sync_;
  Optimizer* optimizer_;
  std::vector<std::vector<size_t>> groups_;  // by segment
  std::vector<double> lrs_;
};

[[noreturn]] void refuse_to_skip(const std::string& name) {
  throw UsageError(fmt::format(
      "[data_parallel] an optimizer that steps in backward lacks '{}', which "
      "would never be stepped: give it all parameters (in groups where options "
      "differ), freeze that one before wrapping, or step after backward",
      name));
}

// Throws UsageError if the optimizer lacks a parameter of the sync: only one
// optimizer steps in backward, so nothing would step it.
void check_steps_all(const GradSync& sync, torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> stepped;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& param : group.params())
      stepped.insert(param.unsafeGetTensorImpl());
  }
  for (const Param& param : sync.params()) {
    if (stepped.count(param.tensor.unsafeGetTensorImpl()) == 0)
      refuse_to_skip(param.name);
  }
}

// Throws UsageError if the optimizer was made for another sync, or lacks a
// parameter.
void check_steps_all(const GradSync& sync, const Optimizer& optimizer) {
  std::vector<bool> is_stepped(sync.params().size());
  for (const OptimizerGroup& group : optimizer.groups()) {
    const auto parts = parts_of(sync, group.weight);
    if (!sync.memory().segment_of(group.weight) || !parts) {
      throw UsageError(
          "[data_parallel] an optimizer of Brigade's that steps in backward is "
          "over this "
          "module's buckets: make it by make_adamw(model.sync(), ...)");
    }
    for (const RunPart& part : *parts)
      is_stepped[static_cast<size_t>(part.param)] = true;
  }
  for (size_t i = 0; i < is_stepped.size(); ++i) {
    if (!is_stepped[i])
      refuse_to_skip(sync.params()[i].name);
  }
}

}  // namespace

BucketStepPtr make_bucket_step(
    GradSync& sync,
    torch::optim::Optimizer& optimizer,
    std::function<void(const torch::Tensor& param)> before_step) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw UsageError(
        "[data_parallel] LBFGS steps all parameters at once, and cannot step "
        "in backward; call its step() after backward()");
  }
  if (sync.options().handover == GradHandover::kMainGrad) {
    throw UsageError(
        "[data_parallel] torch::optim steps in backward over .grad: wrap with "
        "handover = GradHandover::kParamDtype, or step make_adamw()'s AdamW");
  }
  check_steps_all(sync, optimizer);
  return std::make_shared<TorchBucketStep>(
      sync, optimizer, std::move(before_step));
}

BucketStepPtr make_bucket_step(
    GradSync& sync,
    Optimizer& optimizer,
    const std::vector<double>& lrs) {
  if (sync.options().handover != GradHandover::kMainGrad) {
    throw UsageError(
        "[data_parallel] an optimizer of Brigade's that steps in backward is "
        "over this module's "
        "buckets: wrap with handover = GradHandover::kMainGrad");
  }
  check_steps_all(sync, optimizer);
  if (sync.options().order == BucketOrder::kObserved) {
    throw UsageError(
        "[data_parallel] an optimizer of Brigade's that steps in backward with "
        "order = "
        "kObserved: the first step moves the memory that it steps; set order = "
        "BucketOrder::kReverse");
  }
  optimizer.check_steps_groups_apart();
  for (const OptimizerGroup& group : optimizer.groups())
    check_has_rate(group, lrs);
  return std::make_shared<OwnedBucketStep>(sync, optimizer, lrs);
}

BucketStepPtr
make_bucket_step(GradSync& sync, Optimizer& optimizer, double lr) {
  int last = 0;
  for (const OptimizerGroup& group : optimizer.groups())
    last = std::max(last, group.param_group);
  return make_bucket_step(
      sync, optimizer, std::vector<double>(static_cast<size_t>(last) + 1, lr));
}

}  // namespace brigade
