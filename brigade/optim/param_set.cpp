#include "brigade/optim/param_set.h"

#include <algorithm>
#include <string>
#include <utility>

#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/optim/optimizer_groups.h"
#include "brigade/sharding/sharded_weights.h"

namespace brigade {
namespace {

// A copy of `param` whose tensor has no graph.
Param detached(const Param& param) {
  Param result = param;
  result.tensor = param.tensor.detach();
  return result;
}

int64_t numel_of(std::span<const Param> params) {
  int64_t total = 0;
  for (const Param& param : params)
    total += param.tensor.numel();
  return total;
}

}  // namespace

ParamSet::ParamSet(
    std::unique_ptr<GradSync> sync,
    StepRuleOf rule_of,
    MakeOptimizer make)
    : sync_(std::move(sync)),
      rule_of_(std::move(rule_of)),
      make_(std::move(make)) {
  if (auto* bucketed = dynamic_cast<BucketedGradSync*>(sync_.get())) {
    bucketed->follow(
        {.begins = [this] { return optimizer_->wants_reduced_gradients(); },
         .is_reduced =
             [this](size_t segment) {
               optimizer_->gradients_are_reduced(segment);
             }});
  }
  make_optimizer();
}

void ParamSet::make_optimizer() {
  std::vector<StepRule> rules;  // by group
  std::vector<int> group_of;
  for (const Param& param : params()) {
    const StepRule rule = rule_of_(param);
    const auto found = std::find(rules.begin(), rules.end(), rule);
    group_of.push_back(static_cast<int>(found - rules.begin()));
    if (found == rules.end())
      rules.push_back(rule);
  }
  optimizer_ = make_(make_optimizer_groups(*sync_, group_of, rules));
  states_ = std::make_unique<ParamStates>(*sync_, *optimizer_);
  layout_version_ = sync_->layout_version();
}

int64_t ParamSet::numel() const {
  return numel_of(params()) + numel_of(frozen());
}

void ParamSet::finish() {
  sync_->finish();
  if (sync_->layout_version() == layout_version_)
    return;
  // The optimizer's states have not moved, only gradients and weights. `before`
  // keeps them alive.
  const std::vector<Param> before = with_states();
  const int64_t steps = optimizer_->steps();
  const auto old = std::exchange(optimizer_, nullptr);
  make_optimizer();
  optimizer_->set_steps(steps);
  optimizer_->set_scalars(old->scalars());
  const std::vector<Param> moved = with_states();
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < moved.size(); ++i) {
    for (size_t k = 0; k < moved[i].states.size(); ++k)
      copy_state(moved[i].states[k], before[i].states[k]);
  }
}

void ParamSet::step(double lr, double grad_scale) {
  sync_->wait_for_weights();
  optimizer_->start_step(lr, grad_scale, ops::AfterRead::kZero);
  const std::vector<int> unfinished = optimizer_->unfinished();
  if (unfinished.empty())
    optimizer_->finish_step();
  sync_->reset();
  if (unfinished.empty())
    sync_->gather_weights();
  else
    sync_->gather_weights_after(
        unfinished, [this] { optimizer_->finish_step(); });
}

void ParamSet::skip_step() {
  optimizer_->skip_step();
  sync_->zero_main_grads();
  sync_->reset();
}

std::vector<Param> ParamSet::with_states() const {
  std::vector<Param> result;
  for (size_t i = 0; i < params().size(); ++i) {
    result.push_back(detached(params()[i]));
    result.back().states = states_->of(static_cast<int>(i));
  }
  return result;
}

void ParamSet::visit(const Visit& visit) const {
  sync_->wait_for_weights();
  if (is_sharded()) {
    visit_sharded(visit);
  } else {
    for (const Param& param : with_states())
      visit(param);
  }
  visit_frozen(visit);
}

void ParamSet::visit_frozen(const Visit& visit) const {
  HeldUnit held(sync_->sharded_weights());
  for (const Param& param : frozen()) {
    // A parameter that shares memory is whole on every rank.
    if (param.shares_memory_with.empty())
      held.hold(param.unit);
    visit(detached(param));
  }
}

void ParamSet::visit_sharded(const Visit& visit) const {
  const torch::NoGradGuard no_grad;
  HeldUnit held(sync_->sharded_weights());
  for (const FlatSegment& segment : sync_->segments()) {
    auto whole = states_->gather(segment);
    held.hold(segment.first_param->unit);
    for (size_t s = 0; s < segment.slots.size(); ++s) {
      Param param =
          detached(params()[static_cast<size_t>(segment.slots[s].param)]);
      param.states = std::move(whole[s]);
      visit(param);
    }
  }
}

void ParamSet::fill(const Visit& fill) {
  sync_->wait_for_weights();
  if (!is_sharded()) {
    for (const Param& param : with_states())
      fill(param);
    visit_frozen(fill);
    return;
  }
  const torch::NoGradGuard no_grad;
  ShardedWeights* weights = sync_->sharded_weights();
  visit_frozen([&](const Param& param) {
    fill(param);
    if (weights != nullptr && param.shares_memory_with.empty())
      weights->keep_changes(param.unit);
  });
  HeldUnit held(weights);
  for (size_t i = 0; i < params().size(); ++i) {
    const RunPart& owned = params()[i].owned;
    const FlatSegment& segment = sync_->segments()[owned.run];
    held.hold(params()[i].unit);
    Param param = detached(params()[i]);
    param.states = states_->zeros(static_cast<int>(i));
    fill(param);
    if (segment.weight_shard.defined())
      segment.weight_shard.narrow(0, owned.offset, owned.numel)
          .copy_(param.tensor.view({-1}).narrow(0, owned.begin, owned.numel));
    states_->keep(static_cast<int>(i), param.states);
  }
  held.let_go();
  if (weights != nullptr) {
    weights->accept_writes();
    sync_->gather_weights();
  }
}

std::vector<std::pair<CommunicatorPtr, std::vector<State>>> ParamSet::replicas()
    const {
  sync_->wait_for_weights();
  if (sync_->sharded_weights() != nullptr)
    return {};
  std::vector<Param> with_kept;
  if (!is_sharded())
    with_kept = with_states();
  std::vector<std::pair<CommunicatorPtr, std::vector<State>>> result;
  for (const bool trains : {false, true}) {
    const std::span<const Param> list = trains ? params() : frozen();
    for (const auto& members : groups_of(list)) {
      result.emplace_back(
          list[members.front()].group.ranks, std::vector<State>());
      std::vector<State>& tensors = result.back().second;
      for (const size_t i : members)
        tensors.push_back({list[i].name, list[i].tensor.detach()});
      if (!trains || with_kept.empty())
        continue;
      for (const size_t i : members) {
        for (const State& kept : with_kept[i].states) {
          const std::string name = kept.name + "." + with_kept[i].name;
          tensors.push_back({name, kept.tensor});
          if (kept.scales.defined())
            tensors.push_back({"scales of " + name, kept.scales});
        }
      }
    }
  }
  return result;
}

}  // namespace brigade
