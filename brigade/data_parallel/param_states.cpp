#include "brigade/data_parallel/param_states.h"

#include <fmt/format.h>

#include <cstdint>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"

namespace brigade {
namespace {

bool is_sharded(const GradSync& sync) {
  return sync.options().sharding != Sharding::kNone;
}

const torch::Tensor& weight_of(const GradSync& sync, int param) {
  return sync.params()[static_cast<size_t>(param)].tensor;
}

}  // namespace

ParamStates::ParamStates(const GradSync& sync, const Optimizer& optimizer)
    : sync_(sync),
      optimizer_(optimizer),
      places_(sync.params().size()),
      is_stepped_(sync.params().size()) {
  for (size_t g = 0; g < optimizer.groups().size(); ++g) {
    const OptimizerGroup& group = optimizer.groups()[g];
    const auto run = find_owned(sync, group.weight);
    if (!run) {
      throw ConfigError(fmt::format(
          "[data_parallel] '{}' of the optimizer is not in this module's "
          "memory: make it by make_adamw(model.sync(), ...)",
          group.name));
    }
    for (const RunPart& part : parts_of(sync, *run))
      places_[static_cast<size_t>(part.param)] = Place{g, part};
  }
  std::vector<int64_t> stepped;
  for (const auto& place : places_)
    stepped.push_back(place ? 1 : 0);
  if (is_sharded(sync))
    stepped = Agreement(*sync.all_ranks()).max(stepped);
  for (size_t i = 0; i < stepped.size(); ++i)
    is_stepped_[i] = stepped[i] != 0;
}

std::vector<StateSpec> ParamStates::specs(int param) const {
  if (!is_stepped_[static_cast<size_t>(param)])
    return {};
  return optimizer_.kept(weight_of(sync_, param).scalar_type());
}

torch::Tensor ParamStates::owned(const Place& place, size_t k) const {
  return optimizer_.states(place.group)[k].tensor.narrow(
      0, place.part.offset, place.part.numel);
}

std::vector<State> ParamStates::of(int param) const {
  std::vector<State> states;
  const auto& place = places_[static_cast<size_t>(param)];
  for (const StateSpec& spec : specs(param))
    states.push_back(
        {spec.name,
         owned(*place, states.size()).view(weight_of(sync_, param).sizes())});
  return states;
}

std::vector<std::vector<State>> ParamStates::gather(
    const GradSegment& segment) const {
  std::vector<std::vector<State>> states;
  if (!is_sharded(sync_)) {
    for (const BucketSlot& slot : segment.slots)
      states.push_back(of(slot.param));
    return states;
  }
  // Each rank puts its part of every parameter into place, and the ranges are
  // gathered as the weights' are.
  states.resize(segment.slots.size());
  const auto all = optimizer_.kept(segment.weight.scalar_type());
  for (size_t k = 0; k < all.size(); ++k) {
    const auto whole = torch::zeros(
        segment.weight.sizes(), segment.weight.options().dtype(all[k].dtype));
    for (const BucketSlot& slot : segment.slots) {
      const auto& place = places_[static_cast<size_t>(slot.param)];
      if (place)
        whole
            .narrow(0, slot.offset_numel + place->part.begin, place->part.numel)
            .copy_(owned(*place, k));
    }
    segment.group.ranks
        ->all_gather(
            whole, whole.narrow(0, segment.owned.begin, segment.owned.numel))
        ->wait_on_host();
    for (size_t s = 0; s < segment.slots.size(); ++s) {
      const BucketSlot& slot = segment.slots[s];
      if (is_stepped_[static_cast<size_t>(slot.param)])
        states[s].push_back(
            {all[k].name,
             whole.narrow(0, slot.offset_numel, slot.numel)
                 .view(weight_of(sync_, slot.param).sizes())});
    }
  }
  return states;
}

std::vector<State> ParamStates::zeros(int param) const {
  std::vector<State> states;
  const torch::Tensor& weight = weight_of(sync_, param);
  for (const StateSpec& spec : specs(param))
    states.push_back(
        {spec.name,
         torch::zeros_like(weight, weight.options().dtype(spec.dtype))});
  return states;
}

void ParamStates::keep(int param, const std::vector<State>& whole) const {
  const auto& place = places_[static_cast<size_t>(param)];
  for (size_t k = 0; place && k < whole.size(); ++k) {
    owned(*place, k).copy_(whole[k].tensor.reshape({-1}).narrow(
        0, place->part.begin, place->part.numel));
  }
}

}  // namespace brigade
