#include "brigade/optim/param_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/optim/optimizer_groups.h"
#include "brigade/optim/torch_optimizer_fields.h"

namespace brigade {
namespace {

using StatesOfParams = std::vector<std::vector<State>>;

// Adds the states of these elements of parameters on this rank.
void add(
    StatesOfParams& of_params,
    const GradSync& sync,
    const std::vector<RunPart>& parts,
    const std::vector<State>& states) {
  for (const RunPart& part : parts) {
    const Param& param = sync.params()[static_cast<size_t>(part.param)];
    if (part.numel != param.tensor.numel() && part.numel != param.owned.numel) {
      throw UsageError(fmt::format(
          "[data_parallel] the optimizer steps {} of the {} elements that this "
          "rank owns of '{}': give it the tensors of owned_parameters() whole",
          part.numel,
          param.owned.numel,
          param.name));
    }
    std::vector<State>& mine = of_params[static_cast<size_t>(part.param)];
    mine.clear();
    for (const State& state : states)
      mine.push_back(narrow_state(state, part.offset, part.numel));
  }
}

}  // namespace

std::vector<int64_t> note_states(GradSync& sync, const Optimizer& optimizer) {
  const size_t count = sync.params().size();
  StatesOfParams of_params(count);
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
    add(of_params, sync, *parts, optimizer.states(g));
    for (const RunPart& part : *parts)
      stepped[static_cast<size_t>(part.param)] =
          1 + static_cast<int64_t>(group.rule.unit);
  }
  if (sync.options().sharding != Sharding::kNone)
    stepped = Agreement(*sync.all_ranks()).max(stepped);
  std::vector<int64_t> steps(count, -1);
  for (size_t i = 0; i < count; ++i) {
    if (stepped[i] != 0) {
      steps[i] = optimizer.steps();
      const torch::Tensor& weight = sync.params()[i].tensor;
      const torch::Tensor none = torch::empty({0}, weight.options());
      if (of_params[i].empty()) {
        for (const StateSpec& spec : optimizer.kept(
                 static_cast<StepUnit>(stepped[i] - 1), weight.scalar_type()))
          of_params[i].push_back(zero_state(spec, none));
      }
    }
    sync.param_set().set_states(static_cast<int>(i), std::move(of_params[i]));
  }
  return steps;
}

std::vector<int64_t> note_states(
    GradSync& sync,
    const torch::optim::Optimizer& optimizer) {
  const auto empty = make_param_state(optimizer);
  const OptimizerFields all = fields_of(*empty);
  StatesOfParams of_params(sync.params().size());
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
      add(of_params, sync, *parts, kept);
      for (const RunPart& part : *parts)
        std::copy(
            row.begin(),
            row.end(),
            table.begin() + part.param * static_cast<int64_t>(columns));
    }
  }
  table = Agreement(*sync.all_ranks()).max(table);
  std::vector<int64_t> steps;
  for (size_t i = 0; i < of_params.size(); ++i) {
    steps.push_back(table[i * columns] - 1);
    const auto none = torch::empty({0}, sync.params()[i].tensor.options());
    std::vector<State> mine;
    for (size_t f = 0; f + 1 < columns; ++f) {
      if (table[i * columns + f + 1] == 0)
        continue;
      mine.push_back({all.tensors[f].first, none});
      for (const State& state : of_params[i]) {
        if (state.name == mine.back().name)
          mine.back() = state;
      }
    }
    sync.param_set().set_states(static_cast<int>(i), std::move(mine));
  }
  return steps;
}

}  // namespace brigade
