#include "brigade/data_parallel/param_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"

namespace brigade {
namespace {

bool is_sharded(const GradSync& sync) {
  return sync.options().sharding != Sharding::kNone;
}

State shaped(State flat, torch::IntArrayRef sizes) {
  flat.tensor = flat.tensor.view(sizes);
  return flat;
}

// All ranks' ranges of a segment's state, each where it belongs.
void gather_ranges(const FlatSegment& segment, const State& whole) {
  const FlatRange& range = segment.owned;
  const State mine = narrow_state(whole, range.begin, range.numel);
  Communicator& ranks = *segment.group.ranks;
  ranks.all_gather(whole.tensor, mine.tensor)->wait_on_host();
  if (whole.scales.defined())
    ranks.all_gather(whole.scales, mine.scales)->wait_on_host();
}

const torch::Tensor& weight_of(const GradSync& sync, int param) {
  return sync.params()[static_cast<size_t>(param)].tensor;
}

}  // namespace

ParamStates::ParamStates(const GradSync& sync, const Optimizer& optimizer)
    : sync_(sync),
      optimizer_(optimizer),
      places_(sync.params().size()),
      unit_of_(sync.params().size()) {
  // 1 + the unit, which is the same on all ranks that step it; 0: not stepped.
  std::vector<int64_t> stepped(sync.params().size(), 0);
  for (size_t g = 0; g < optimizer.groups().size(); ++g) {
    const OptimizerGroup& group = optimizer.groups()[g];
    const auto run = find_owned(sync, group.weight);
    if (!run) {
      throw ConfigError(fmt::format(
          "[data_parallel] '{}' of the optimizer is not in this module's "
          "memory: make it by make_adamw(model.sync(), ...)",
          group.name));
    }
    for (const RunPart& part : parts_of(sync, *run)) {
      const auto param = static_cast<size_t>(part.param);
      places_[param] = part;
      places_[param]->run = g;
      stepped[param] = 1 + static_cast<int64_t>(group.rule.unit);
    }
  }
  if (is_sharded(sync))
    stepped = Agreement(*sync.all_ranks()).max(stepped);
  for (size_t i = 0; i < stepped.size(); ++i) {
    if (stepped[i] != 0)
      unit_of_[i] = static_cast<StepUnit>(stepped[i] - 1);
  }
}

std::vector<StateSpec> ParamStates::specs(int param) const {
  const auto unit = unit_of_[static_cast<size_t>(param)];
  if (!unit)
    return {};
  return optimizer_.kept(*unit, weight_of(sync_, param).scalar_type());
}

State ParamStates::owned(const RunPart& place, size_t k) const {
  return narrow_state(
      optimizer_.states(place.run)[k], place.offset, place.numel);
}

std::vector<State> ParamStates::of(int param) const {
  std::vector<State> states;
  const auto& place = places_[static_cast<size_t>(param)];
  for (size_t k = 0; k < specs(param).size(); ++k)
    states.push_back(shaped(owned(*place, k), weight_of(sync_, param).sizes()));
  return states;
}

std::vector<std::vector<State>> ParamStates::gather(
    const FlatSegment& segment) const {
  std::vector<std::vector<State>> states;
  if (!is_sharded(sync_)) {
    for (const BucketSlot& slot : segment.slots)
      states.push_back(of(slot.param));
    return states;
  }
  // Each rank puts its part of every parameter into place, and the ranges are
  // gathered as the weights' are. All states of one name at once.
  std::vector<StateSpec> all;
  for (const BucketSlot& slot : segment.slots) {
    const auto kept = specs(slot.param);
    states.emplace_back(kept.size());
    for (const StateSpec& spec : kept) {
      if (std::find(all.begin(), all.end(), spec) == all.end())
        all.push_back(spec);
    }
  }
  for (const StateSpec& spec : all) {
    const State whole = zero_state(spec, segment.weight);
    // Of a slot's parameter, the place of the state among its own.
    const auto index_in = [&](const BucketSlot& slot) {
      const auto kept = specs(slot.param);
      const auto found = std::find(kept.begin(), kept.end(), spec);
      return found == kept.end()
                 ? std::nullopt
                 : std::optional(static_cast<size_t>(found - kept.begin()));
    };
    for (const BucketSlot& slot : segment.slots) {
      const auto& place = places_[static_cast<size_t>(slot.param)];
      const auto k = index_in(slot);
      if (place && k)
        copy_state(
            narrow_state(whole, slot.offset_numel + place->begin, place->numel),
            owned(*place, *k));
    }
    gather_ranges(segment, whole);
    for (size_t s = 0; s < segment.slots.size(); ++s) {
      const BucketSlot& slot = segment.slots[s];
      if (const auto k = index_in(slot))
        states[s][*k] = shaped(
            narrow_state(whole, slot.offset_numel, slot.numel),
            weight_of(sync_, slot.param).sizes());
    }
  }
  return states;
}

std::vector<State> ParamStates::zeros(int param) const {
  std::vector<State> states;
  const torch::Tensor& weight = weight_of(sync_, param);
  for (const StateSpec& spec : specs(param))
    states.push_back(zero_state(spec, weight));
  return states;
}

void ParamStates::keep(int param, const std::vector<State>& whole) const {
  const auto& place = places_[static_cast<size_t>(param)];
  for (size_t k = 0; place && k < whole.size(); ++k) {
    copy_state(
        owned(*place, k),
        narrow_state(shaped(whole[k], {-1}), place->begin, place->numel));
  }
}

}  // namespace brigade
