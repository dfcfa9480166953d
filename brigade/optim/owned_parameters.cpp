#include "brigade/optim/owned_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/data_parallel/grad_hooks.h"
#include "brigade/optim/optimizer_groups.h"

namespace brigade {
namespace {

void check_torch_can_step(const GradSync& sync) {
  if (sync.options().handover != GradHandover::kMainGrad) {
    throw UsageError(
        "[data_parallel] owned_parameters() are of flat memory: wrap with "
        "handover = GradHandover::kMainGrad");
  }
  for (const FlatSegment& segment : sync.segments()) {
    if (is_16_bit(segment.weight.scalar_type())) {
      throw UsageError(fmt::format(
          "[data_parallel] owned_parameters() of {} weights: torch::optim "
          "wants "
          "gradients of the weights' dtype, and ours are float32; use "
          "make_adamw(), which keeps float32 masters",
          c10::toString(segment.weight.scalar_type())));
    }
  }
}

void check_adamw_can_step(const GradSync& sync) {
  if (sync.options().handover != GradHandover::kMainGrad) {
    throw UsageError(
        "[data_parallel] Brigade's optimizers read the flat main_grads: wrap "
        "with "
        "handover = GradHandover::kMainGrad, or use torch::optim");
  }
}

void check_is_not_of_another(
    const GradSync& sync,
    const torch::Tensor& weight) {
  const auto owner = owner_of(weight);
  if (owner == nullptr || owner == sync.memory().flat_memory())
    return;
  throw UsageError(fmt::format(
      "[data_parallel] step() of an optimizer over owned_parameters() of "
      "another DataParallel{}: make one over owned_parameters() of this one, "
      "and step the weights by DataParallel::step() of the model that they "
      "are of",
      owner->is_current ? "" : ", which is gone"));
}

// Adds the gradients that an optimizer is to read. owned: this rank's part, for
// owned parameters or, if .grad() holds it as well, for the module's own;
// unknown: those of parameters that are not the sync's.
void add_gradients_read_by(
    const torch::optim::Optimizer& optimizer,
    const GradSync& sync,
    std::vector<torch::Tensor>& owned,
    std::vector<torch::Tensor>& unknown) {
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& weight : group.params()) {
      const int index = sync.param_set().index_of(weight);
      if (index < 0) {
        check_is_not_of_another(sync, weight);
        if (const torch::Tensor own_grad = sync.memory().main_grad_of(weight);
            own_grad.defined())
          owned.push_back(own_grad);
        else if (weight.grad().defined())
          unknown.push_back(weight.grad());
        continue;
      }
      if (divides_gradients(sync.options().sharding)) {
        throw UsageError(fmt::format(
            "[data_parallel] step() of an optimizer over the module's own "
            "parameters: '{}' is the module's own parameter, whose gradient is "
            "elsewhere with sharding = {}; give the optimizer "
            "owned_parameters()",
            sync.params()[static_cast<size_t>(index)].name,
            to_string(sync.options().sharding)));
      }
      owned.push_back(sync.owned_main_grad(index));
    }
  }
}

// Puts a parameter into a group; group_of: by parameter of the sync. Returns
// false if the sync does not know it. Throws UsageError if it is in another
// group already.
bool put_in_group(
    const GradSync& sync,
    const torch::Tensor& param,
    int group,
    std::vector<int>& group_of) {
  const int index = sync.param_set().index_of(param);
  if (index < 0)
    return false;
  int& now = group_of[static_cast<size_t>(index)];
  if (now != kNoGroup && now != group) {
    throw UsageError(fmt::format(
        "[data_parallel] '{}' is in parameter groups {} and {}: an optimizer "
        "steps each parameter once",
        sync.params()[static_cast<size_t>(index)].name,
        now,
        group));
  }
  now = group;
  return true;
}

// The groups that an optimizer steps; valid as long as the sync's layout.
std::vector<OptimizerGroup> groups_over(
    const GradSync& sync,
    const std::vector<SteppedParams>& groups) {
  check_adamw_can_step(sync);
  std::vector<int> group_of(sync.params().size(), kNoGroup);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const torch::Tensor& param : groups[g].params) {
      if (param.requires_grad() &&
          !put_in_group(sync, param, static_cast<int>(g), group_of)) {
        throw UsageError(fmt::format(
            "[data_parallel] parameter group {} has a parameter of shape {} "
            "that is not synchronised (WrapOptions::ignore, or another "
            "module's): step it with an optimizer of its own",
            g,
            c10::str(param.sizes())));
      }
    }
  }
  std::vector<StepRule> rules;
  for (const SteppedParams& group : groups)
    rules.push_back({.weight_decay = group.weight_decay, .unit = group.unit});
  auto made = make_optimizer_groups(sync, group_of, rules);
  // A rank that owns none of the parameters reports its steps to the sync as
  // the others do.
  if (made.empty()) {
    const FlatSegment& segment = sync.segments().front();
    made.push_back(
        {.name = "bucket 0 [0:0]",
         .weight = segment.owned_weight().narrow(0, 0, 0),
         .main_grad = segment.owned_main_grad().narrow(0, 0, 0),
         .memory = sync.memory().flat_memory()});
  }
  return made;
}

}  // namespace

std::vector<torch::Tensor> owned_parameters(GradSync& sync) {
  check_torch_can_step(sync);
  const std::vector<int> one_group(sync.params().size(), 0);
  std::vector<torch::Tensor> owned;
  for (const auto& group : make_optimizer_groups(sync, one_group, {StepRule{}}))
    owned.push_back(sync.owned_leaves().leaf_of(group.weight));
  return owned;
}

std::vector<torch::optim::OptimizerParamGroup> owned_parameters(
    GradSync& sync,
    std::vector<torch::optim::OptimizerParamGroup> groups) {
  check_torch_can_step(sync);
  std::vector<int> group_of(sync.params().size(), kNoGroup);
  for (size_t g = 0; g < groups.size(); ++g) {
    std::erase_if(groups[g].params(), [&](const torch::Tensor& param) {
      return put_in_group(sync, param, static_cast<int>(g), group_of);
    });
  }
  const std::vector<StepRule> any(groups.size());
  for (const auto& made : make_optimizer_groups(sync, group_of, any)) {
    if (!made.parts.empty())
      groups[static_cast<size_t>(made.param_group)].params().push_back(
          sync.owned_leaves().leaf_of(made.weight));
  }
  return groups;
}

AdamW make_adamw(
    const GradSync& sync,
    double weight_decay,
    const AdamWOptions& options) {
  check_adamw_can_step(sync);
  AdamWParams all{.weight_decay = weight_decay};
  for (const Param& param : sync.params())
    all.params.push_back(param.tensor);
  return make_adamw(sync, std::vector<AdamWParams>{std::move(all)}, options);
}

AdamW make_adamw(
    const GradSync& sync,
    const std::vector<AdamWParams>& groups,
    const AdamWOptions& options) {
  return {groups_over(sync, groups), options};
}

Muon make_muon(
    const GradSync& sync,
    const std::vector<SteppedParams>& groups,
    const Muon::Options& options) {
  if (std::none_of(groups.begin(), groups.end(), [](const auto& group) {
        return group.unit == StepUnit::kMatrices && !group.params.empty();
      }))
    throw UsageError(
        "[data_parallel] Muon without matrices: give it a group of them with "
        "unit = StepUnit::kMatrices, or use make_adamw()");
  if (sync.has_uneven_inputs())
    throw UsageError(
        "[data_parallel] Muon with uneven inputs: a rank without data would "
        "have to compute matrices for the others; give every rank the same "
        "number of steps, or use make_adamw()");
  return {
      groups_over(sync, groups),
      sync.params(),
      [](const Param& param) { return param.group; },
      options};
}

Sgd make_sgd(
    const GradSync& sync,
    const std::vector<SteppedParams>& groups,
    const SgdOptions& options) {
  return {groups_over(sync, groups), options};
}

ScheduleFreeAdamW make_schedule_free_adamw(
    const GradSync& sync,
    const std::vector<SteppedParams>& groups,
    const ScheduleFreeAdamW::Options& options) {
  return {groups_over(sync, groups), options};
}

void step_owned(GradSync& sync, torch::optim::Optimizer& optimizer) {
  sync.owned_leaves().throw_if_moved();
  std::vector<torch::Tensor> owned;
  std::vector<torch::Tensor> unknown;
  add_gradients_read_by(optimizer, sync, owned, unknown);
  sync.check_before_step();
  if (sync.grad_scale() != 1.0) {
    for (const torch::Tensor& gradient : owned)
      gradient.mul_(sync.grad_scale());
  }
  optimizer.step();
  // No gradient is left for the next step, even if nobody calls zero_grad().
  for (const torch::Tensor& gradient : unknown)
    gradient.zero_();
  for (const torch::Tensor& gradient : owned) {
    gradient.zero_();
    sync.note_stepped(gradient.numel());
  }
  sync.gather_weights();
}

}  // namespace brigade
