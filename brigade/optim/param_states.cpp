#include "brigade/optim/param_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/optim/optimizer_groups.h"
#include "brigade/optim/torch_optimizer_fields.h"

namespace brigade {
namespace {

using StatesByParam = ParamSet::StatesByParam;

// In the place of a count: a rank steps only some of the elements that it owns
// of a parameter.
constexpr int64_t kIsPartial = std::numeric_limits<int64_t>::max();

// Adds the states of these elements of parameters on this rank. Returns the
// parameters that are stepped in part.
std::vector<int> add(
    StatesByParam& of_params,
    const GradSync& sync,
    const std::vector<RunPart>& parts,
    const std::vector<State>& states) {
  std::vector<int> partial;
  for (const RunPart& part : parts) {
    const Param& param = sync.params()[static_cast<size_t>(part.param)];
    if (part.numel != param.tensor.numel() && part.numel != param.owned.numel)
      partial.push_back(part.param);
    std::vector<State>& mine = of_params[static_cast<size_t>(part.param)];
    mine.clear();
    for (const State& state : states)
      mine.push_back(narrow_state(state, part.offset, part.numel));
  }
  return partial;
}

void throw_if_partial(const Param& param, int64_t count) {
  if (count == kIsPartial)
    throw UsageError(fmt::format(
        "[data_parallel] the optimizer steps only some elements of '{}' that a "
        "rank owns: give it the tensors of owned_parameters() whole",
        param.name));
}

// An optimizer's states, and how often it has stepped each parameter.
using Found = std::pair<StatesByParam, std::vector<int64_t>>;

Found find_states(const GradSync& sync, const Optimizer& optimizer) {
  const size_t count = sync.params().size();
  StatesByParam states(count);
  std::vector<int64_t> steps(count, -1);
  // 1 + the unit, which is the same on all ranks that step the parameter; 0 if
  // this rank does not.
  std::vector<int64_t> stepped(count, 0);
  for (size_t g = 0; g < optimizer.groups().size(); ++g) {
    const OptimizerGroup& group = optimizer.groups()[g];
    const auto parts = parts_of(sync, group.weight);
    if (!parts) {
      throw UsageError(fmt::format(
          "[data_parallel] '{}' of the optimizer is not in this module's "
          "memory: make it by make_adamw(model.sync(), ...)",
          group.name));
    }
    for (const RunPart& part : *parts)
      stepped[static_cast<size_t>(part.param)] =
          1 + static_cast<int64_t>(group.rule.unit);
    for (const int param : add(states, sync, *parts, optimizer.states(g)))
      stepped[static_cast<size_t>(param)] = kIsPartial;
  }
  if (sync.options().sharding != Sharding::kNone)
    stepped = Agreement(*sync.all_ranks()).max(stepped);
  for (size_t i = 0; i < count; ++i) {
    throw_if_partial(sync.params()[i], stepped[i]);
    if (stepped[i] == 0)
      continue;
    steps[i] = optimizer.steps();
    if (!states[i].empty())
      continue;
    const torch::Tensor& weight = sync.params()[i].tensor;
    const auto unit = static_cast<StepUnit>(stepped[i] - 1);
    for (const StateSpec& spec : optimizer.kept(unit, weight.scalar_type()))
      states[i].push_back(
          zero_state(spec, torch::empty({0}, weight.options())));
  }
  return {std::move(states), std::move(steps)};
}

Found find_states(
    const GradSync& sync,
    const torch::optim::Optimizer& optimizer) {
  const auto empty = make_param_state(optimizer);
  const OptimizerFields all = fields_of(*empty);
  StatesByParam of_params(sync.params().size());
  // For each parameter steps + 1, or 0 without state, and 1 for each field that
  // it has: the highest of any rank.
  const size_t columns = 1 + all.tensors.size();
  std::vector<int64_t> table(of_params.size() * columns, 0);
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
      for (const RunPart& part : *parts)
        std::copy(
            row.begin(),
            row.end(),
            table.begin() + part.param * static_cast<int64_t>(columns));
      for (const int partial : add(of_params, sync, *parts, kept))
        table[static_cast<size_t>(partial) * columns] = kIsPartial;
    }
  }
  table = Agreement(*sync.all_ranks()).max(table);
  StatesByParam states(of_params.size());
  std::vector<int64_t> steps;
  for (size_t i = 0; i < of_params.size(); ++i) {
    throw_if_partial(sync.params()[i], table[i * columns]);
    steps.push_back(table[i * columns] - 1);
    const auto none = torch::empty({0}, sync.params()[i].tensor.options());
    for (size_t f = 0; f + 1 < columns; ++f) {
      if (table[i * columns + f + 1] == 0)
        continue;
      State& mine = states[i].emplace_back();
      mine = {all.tensors[f].first, none};
      for (const State& state : of_params[i]) {
        if (state.name == mine.name)
          mine = state;
      }
    }
  }
  return {std::move(states), std::move(steps)};
}

}  // namespace

StatesByParam note_states(GradSync& sync, const Optimizer& optimizer) {
  return sync.param_set().swap_states(find_states(sync, optimizer).first);
}

NotedStates::NotedStates(GradSync& sync, const Optimizer& optimizer)
    : NotedStates(sync, find_states(sync, optimizer)) {}

NotedStates::NotedStates(
    GradSync& sync,
    const torch::optim::Optimizer& optimizer)
    : NotedStates(sync, find_states(sync, optimizer)) {}

NotedStates::NotedStates(GradSync& sync, Found found)
    : sync_(sync),
      steps_(std::move(found.second)),
      before_(sync.param_set().swap_states(std::move(found.first))) {}

NotedStates::~NotedStates() {
  sync_.param_set().swap_states(std::move(before_));
}

}  // namespace brigade
