#include "brigade/optim/param_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/optim/optimizer_groups.h"
#include "brigade/optim/torch_optimizer_fields.h"

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
    : sync_(sync), kept_(sync.params().size()) {}

void ParamStates::add(
    const std::vector<RunPart>& parts,
    const std::vector<State>& states) {
  for (const RunPart& part : parts) {
    Kept& kept = kept_[static_cast<size_t>(part.param)];
    kept.begin = part.begin;
    kept.mine.clear();
    for (const State& state : states)
      kept.mine.push_back(narrow_state(state, part.offset, part.numel));
  }
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
    kept_[i].steps = optimizer.steps();
    kept_[i].specs = optimizer.kept(
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
      add(*parts, kept);
      for (const RunPart& part : *parts)
        std::copy(
            row.begin(),
            row.end(),
            table.begin() + part.param * static_cast<int64_t>(columns));
    }
  }
  table = Agreement(*sync.all_ranks()).max(table);
  for (size_t i = 0; i < kept_.size(); ++i) {
    kept_[i].steps = table[i * columns] - 1;
    for (size_t f = 0; f + 1 < columns; ++f) {
      if (table[i * columns + f + 1] != 0)
        kept_[i].specs.push_back({.name = all.tensors[f].first});
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

std::vector<State> ParamStates::of(int param) const {
  const Kept& kept = kept_of(param);
  if (kept.mine.empty())
    return zeros(param);
  std::vector<State> states;
  for (size_t k = 0; k < kept.specs.size(); ++k)
    states.push_back(shaped(kept.mine.at(k), weight_of(sync_, param).sizes()));
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
  // gathered as the weights' are, all states of one name at once.
  std::vector<StateSpec> all;
  for (const RunPart& slot : segment.slots) {
    const auto& specs = kept_of(slot.param).specs;
    states.emplace_back(specs.size());
    for (const StateSpec& spec : specs) {
      if (std::find(all.begin(), all.end(), spec) == all.end())
        all.push_back(spec);
    }
  }
  for (const StateSpec& spec : all) {
    const State whole = zero(spec, segment.weight);
    // The index of the state among those of the slot's parameter.
    const auto index_in = [&](const RunPart& slot) {
      const auto& specs = kept_of(slot.param).specs;
      const auto found = std::find(specs.begin(), specs.end(), spec);
      return found == specs.end()
                 ? std::nullopt
                 : std::optional(static_cast<size_t>(found - specs.begin()));
    };
    for (const RunPart& slot : segment.slots) {
      const Kept& kept = kept_of(slot.param);
      const auto k = index_in(slot);
      if (!k || kept.mine.empty())
        continue;
      const State& mine = kept.mine.at(*k);
      const int64_t begin = slot.offset + kept.begin;
      copy_state(narrow_state(whole, begin, mine.tensor.numel()), mine);
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
  for (const StateSpec& spec : kept_of(param).specs)
    states.push_back(zero(spec, weight));
  return states;
}

void ParamStates::keep(int param, const std::vector<State>& whole) const {
  const Kept& kept = kept_of(param);
  for (size_t k = 0; !kept.mine.empty() && k < whole.size(); ++k) {
    const State& mine = kept.mine.at(k);
    const State flat = shaped(whole[k], {-1});
    copy_state(mine, narrow_state(flat, kept.begin, mine.tensor.numel()));
  }
}

}  // namespace brigade
