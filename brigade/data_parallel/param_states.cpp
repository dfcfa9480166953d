#include "brigade/data_parallel/param_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/data_parallel/optimizer_groups.h"
#include "brigade/data_parallel/torch_optimizer_fields.h"

namespace brigade {
namespace {

bool is_sharded(const GradSync& sync) {
  return sync.options().sharding != Sharding::kNone;
}

State shaped(State flat, torch::IntArrayRef sizes) {
  flat.tensor = flat.tensor.view(sizes);
  return flat;
}

// Gathers all ranks' ranges of a segment's state, each in its place.
void gather_ranges(const FlatSegment& segment, const State& whole) {
  const FlatRange& range = segment.owned;
  const State mine = narrow_state(whole, range.begin, range.numel);
  Communicator& ranks = *segment.first_param->group.ranks;
  ranks.all_gather(whole.tensor, mine.tensor)->wait_on_host();
  if (whole.scales.defined())
    ranks.all_gather(whole.scales, mine.scales)->wait_on_host();
}

const torch::Tensor& weight_of(const GradSync& sync, int param) {
  return sync.params()[static_cast<size_t>(param)].tensor;
}

}  // namespace

ParamStates::ParamStates(const GradSync& sync)
    : sync_(sync),
      places_(sync.params().size()),
      specs_(sync.params().size()),
      steps_(sync.params().size(), -1) {}

void ParamStates::add(
    const std::vector<RunPart>& parts,
    std::vector<State> states) {
  for (const RunPart& part : parts) {
    auto& place = places_[static_cast<size_t>(part.param)];
    place = part;
    place->run = states_.size();
  }
  states_.push_back(std::move(states));
}

ParamStates::ParamStates(const GradSync& sync, const Optimizer& optimizer)
    : ParamStates(sync) {
  // 1 + the unit, which is the same on all ranks that step the parameter; 0 if
  // this rank does not.
  std::vector<int64_t> stepped(sync.params().size(), 0);
  for (size_t g = 0; g < optimizer.groups().size(); ++g) {
    const OptimizerGroup& group = optimizer.groups()[g];
    const auto parts = parts_of(sync, group.weight);
    if (!parts) {
      throw UsageError(fmt::format(
          "[data_parallel] '{}' of the optimizer is not in this module's "
          "memory: make it by make_adamw(model.sync(), ...)",
          group.name));
    }
    add(*parts, optimizer.states(g));
    for (const RunPart& part : *parts)
      stepped[static_cast<size_t>(part.param)] =
          1 + static_cast<int64_t>(group.rule.unit);
  }
  if (is_sharded(sync))
    stepped = Agreement(*sync.all_ranks()).max(stepped);
  for (size_t i = 0; i < stepped.size(); ++i) {
    if (stepped[i] == 0)
      continue;
    steps_[i] = optimizer.steps();
    specs_[i] = optimizer.kept(
        static_cast<StepUnit>(stepped[i] - 1),
        sync.params()[i].tensor.scalar_type());
  }
}

ParamStates::ParamStates(
    const GradSync& sync,
    const torch::optim::Optimizer& optimizer)
    : ParamStates(sync) {
  is_torch_ = true;
  const auto empty = make_param_state(optimizer);
  const OptimizerFields all = fields_of(*empty);
  // For each parameter steps + 1, or 0 without state, and 1 for each field that
  // it has: the highest of any rank.
  const size_t columns = 1 + all.tensors.size();
  std::vector<int64_t> table(sync.params().size() * columns, 0);
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& param : group.params()) {
      auto* state = find_param_state(optimizer, param);
      if (state == nullptr)
        continue;
      const auto parts = parts_of(sync, param);
      if (!parts)
        continue;
      const OptimizerFields fields = fields_of(*state);
      std::vector<int64_t> row(columns, 0);
      row[0] = 1 + (fields.step != nullptr ? *fields.step : 0);
      std::vector<State> kept;
      for (size_t f = 0; f + 1 < columns; ++f) {
        const auto& [name, tensor] = fields.tensors[f];
        if (!tensor->defined())
          continue;
        row[f + 1] = 1;
        kept.push_back({name, tensor->reshape({-1})});
      }
      add(*parts, std::move(kept));
      for (const RunPart& part : *parts)
        std::copy(
            row.begin(),
            row.end(),
            table.begin() + part.param * static_cast<int64_t>(columns));
    }
  }
  table = Agreement(*sync.all_ranks()).max(table);
  for (size_t i = 0; i < specs_.size(); ++i) {
    steps_[i] = table[i * columns] - 1;
    for (size_t f = 0; f + 1 < columns; ++f) {
      if (table[i * columns + f + 1] != 0)
        specs_[i].push_back({.name = all.tensors[f].first});
    }
  }
}

State ParamStates::zero(const StateSpec& spec, const torch::Tensor& weight)
    const {
  // Contiguous even if the weight is not: shaped() views it.
  return is_torch_
             ? State{spec.name, torch::zeros(weight.sizes(), weight.options())}
             : zero_state(spec, weight);
}

State ParamStates::owned(const RunPart& place, size_t k) const {
  return narrow_state(states_[place.run].at(k), place.offset, place.numel);
}

std::vector<State> ParamStates::of(int param) const {
  const auto& place = places_[static_cast<size_t>(param)];
  if (!place)
    return zeros(param);
  std::vector<State> states;
  for (size_t k = 0; k < specs(param).size(); ++k)
    states.push_back(shaped(owned(*place, k), weight_of(sync_, param).sizes()));
  return states;
}

std::vector<std::vector<State>> ParamStates::gather(
    const FlatSegment& segment) const {
  std::vector<std::vector<State>> states;
  if (!is_sharded(sync_)) {
    for (const RunPart& slot : segment.slots)
      states.push_back(of(slot.param));
    return states;
  }
  // Each rank puts its part of every parameter into place, and the ranges are
  // gathered as the weights' are. All states of one name at once.
  std::vector<StateSpec> all;
  for (const RunPart& slot : segment.slots) {
    const auto& kept = specs(slot.param);
    states.emplace_back(kept.size());
    for (const StateSpec& spec : kept) {
      if (std::find(all.begin(), all.end(), spec) == all.end())
        all.push_back(spec);
    }
  }
  for (const StateSpec& spec : all) {
    const State whole = zero(spec, segment.weight);
    // The index of the state among those of the slot's parameter.
    const auto index_in = [&](const RunPart& slot) {
      const auto& kept = specs(slot.param);
      const auto found = std::find(kept.begin(), kept.end(), spec);
      return found == kept.end()
                 ? std::nullopt
                 : std::optional(static_cast<size_t>(found - kept.begin()));
    };
    for (const RunPart& slot : segment.slots) {
      const auto& place = places_[static_cast<size_t>(slot.param)];
      const auto k = index_in(slot);
      if (place && k)
        copy_state(
            narrow_state(whole, slot.offset + place->begin, place->numel),
            owned(*place, *k));
    }
    gather_ranges(segment, whole);
    for (size_t s = 0; s < segment.slots.size(); ++s) {
      const RunPart& slot = segment.slots[s];
      if (const auto k = index_in(slot))
        states[s][*k] = shaped(
            narrow_state(whole, slot.offset, slot.numel),
            weight_of(sync_, slot.param).sizes());
    }
  }
  return states;
}

std::vector<State> ParamStates::zeros(int param) const {
  std::vector<State> states;
  const torch::Tensor& weight = weight_of(sync_, param);
  for (const StateSpec& spec : specs(param))
    states.push_back(zero(spec, weight));
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
