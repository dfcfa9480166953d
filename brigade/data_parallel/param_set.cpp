#include "brigade/data_parallel/param_set.h"

#include <utility>

#include "brigade/data_parallel/sharded_weights.h"

namespace brigade {
namespace {

// `param`, its tensor without a graph.
Param detached(const Param& param) {
  Param result = param;
  result.tensor = param.tensor.detach();
  return result;
}

}  // namespace

ParamSet::ParamSet(
    std::unique_ptr<GradSync> sync,
    DecayRule weight_decay,
    MakeOptimizer make)
    : sync_(std::move(sync)),
      weight_decay_(std::move(weight_decay)),
      make_(std::move(make)) {
  make_optimizer();
}

void ParamSet::make_optimizer() {
  OptimizerGroups made = make_optimizer_groups(*sync_, weight_decay_);
  optimizer_ = make_(std::move(made.groups));
  places_ = std::move(made.places);
  layout_version_ = sync_->layout_version();
}

int64_t ParamSet::numel() const {
  int64_t total = 0;
  for (const Param& param : params())
    total += param.tensor.numel();
  return total;
}

void ParamSet::finish() {
  sync_->finish();
  if (sync_->layout_version() == layout_version_)
    return;
  // The optimizer's states are where they were: only gradients and weights
  // moved. They live until `before` is gone.
  const std::vector<Param> before = with_states();
  const int64_t steps = optimizer_->steps();
  const auto old = std::exchange(optimizer_, nullptr);
  make_optimizer();
  optimizer_->set_steps(steps);
  const std::vector<Param> moved = with_states();
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < moved.size(); ++i) {
    for (size_t k = 0; k < moved[i].states.size(); ++k)
      torch::Tensor(moved[i].states[k].tensor)
          .copy_(before[i].states[k].tensor);
  }
}

std::vector<Param> ParamSet::with_states() const {
  std::vector<Param> result;
  for (size_t i = 0; i < params().size(); ++i) {
    Param param = detached(params()[i]);
    const OptimizerGroups::Place& place = places_[i];
    const auto specs = optimizer_->kept(param.tensor.scalar_type());
    const auto& flat = optimizer_->states(place.group);
    for (size_t k = 0; k < specs.size(); ++k)
      param.states.push_back(
          {specs[k].name,
           flat[k]
               .narrow(0, place.offset_numel, place.numel)
               .view(param.tensor.sizes())});
    result.push_back(std::move(param));
  }
  return result;
}

void ParamSet::visit(const Visit& visit) const {
  sync_->wait_for_weights();
  if (is_sharded()) {
    visit_sharded(visit);
    return;
  }
  for (const Param& param : with_states())
    visit(param);
}

// Bucket by bucket: each rank puts its part of every parameter into place, and
// the ranges are gathered as the weights' are.
void ParamSet::visit_sharded(const Visit& visit) const {
  const torch::NoGradGuard no_grad;
  HeldUnit held(sync_->sharded_weights());
  for (const GradSegment& segment : sync_->segments()) {
    const auto specs = optimizer_->kept(segment.weight.scalar_type());
    std::vector<torch::Tensor> whole;
    for (size_t k = 0; k < specs.size(); ++k) {
      whole.push_back(torch::zeros(
          segment.weight.sizes(),
          segment.weight.options().dtype(specs[k].dtype)));
      for (const BucketSlot& slot : segment.slots) {
        const auto& place = places_[static_cast<size_t>(slot.param)];
        if (place.numel == 0)
          continue;
        whole[k]
            .narrow(0, slot.offset_numel + place.begin, place.numel)
            .copy_(optimizer_->states(place.group)[k].narrow(
                0, place.offset_numel, place.numel));
      }
      sync_->communicator()
          ->all_gather(
              whole[k],
              whole[k].narrow(0, segment.owned.begin, segment.owned.numel))
          ->wait_on_host();
    }
    held.hold(segment.unit);
    for (const BucketSlot& slot : segment.slots) {
      Param param = detached(params()[static_cast<size_t>(slot.param)]);
      for (size_t k = 0; k < specs.size(); ++k)
        param.states.push_back(
            {specs[k].name,
             whole[k]
                 .narrow(0, slot.offset_numel, slot.numel)
                 .view(param.tensor.sizes())});
      visit(param);
    }
  }
}

void ParamSet::fill(const Visit& fill) {
  sync_->wait_for_weights();
  if (!is_sharded()) {
    for (const Param& param : with_states())
      fill(param);
    return;
  }
  const torch::NoGradGuard no_grad;
  HeldUnit held(sync_->sharded_weights());
  for (size_t i = 0; i < params().size(); ++i) {
    const OwnedPart& owned = sync_->owned_parts()[i];
    const GradSegment& segment = sync_->segments()[owned.segment];
    Param param = detached(params()[i]);
    for (const StateSpec& spec : optimizer_->kept(param.tensor.scalar_type()))
      param.states.push_back(
          {spec.name,
           torch::zeros_like(
               param.tensor, param.tensor.options().dtype(spec.dtype))});
    held.hold(segment.unit);
    fill(param);
    if (segment.weight_shard.defined())
      segment.weight_shard.narrow(0, owned.offset, owned.numel)
          .copy_(param.tensor.view({-1}).narrow(0, owned.begin, owned.numel));
    const auto& place = places_[i];
    for (size_t k = 0; place.numel > 0 && k < param.states.size(); ++k) {
      optimizer_->states(place.group)[k]
          .narrow(0, place.offset_numel, place.numel)
          .copy_(param.states[k].tensor.view({-1}).narrow(
              0, place.begin, place.numel));
    }
  }
  held.let_go();
  if (sync_->sharded_weights() != nullptr)
    sync_->gather_weights();
}

std::vector<State> ParamSet::replicas() const {
  sync_->wait_for_weights();
  std::vector<State> result;
  if (sync_->sharded_weights() != nullptr)
    return result;
  for (const Param& param : params())
    result.push_back({param.name, param.tensor.detach()});
  if (is_sharded())
    return result;
  for (const Param& param : with_states()) {
    for (const State& kept : param.states)
      result.push_back({kept.name + "." + param.name, kept.tensor});
  }
  return result;
}

}  // namespace brigade
