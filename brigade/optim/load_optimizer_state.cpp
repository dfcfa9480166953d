#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/optim/optimizer_groups.h"
#include "brigade/optim/optimizer_state.h"
#include "brigade/optim/param_states.h"
#include "brigade/optim/torch_optimizer_fields.h"

namespace brigade {
namespace {

constexpr const char* kStep = "step";

using ParamFields = std::map<std::string, torch::Tensor>;

[[noreturn]] void refuse_state(const std::string& what) {
  throw DataError("[data_parallel] the optimizer state " + what);
}

void check_is_of(const GradSync& sync, const OptimizerState& state) {
  for (const auto& [name, fields] : state.of_param) {
    const int index = sync.param_set().index_of(name);
    if (index < 0)
      refuse_state(fmt::format(
          "has '{}', which this module has not, or not as a parameter that is "
          "trained",
          name));
    const auto sizes = sync.params()[static_cast<size_t>(index)].tensor.sizes();
    for (const auto& [field, tensor] : fields) {
      if (field != kStep && tensor.sizes() != sizes)
        refuse_state(fmt::format(
            "has '{}' of '{}' with shape {}: expected {}",
            field,
            name,
            c10::str(tensor.sizes()),
            c10::str(sizes)));
    }
    if (fields.count(kStep) == 0)
      refuse_state(fmt::format("has no 'step' of '{}'", name));
  }
}

// Throws unless each parameter that the optimizer steps, and keeps states of
// beside its master, has some in a state that has any: steps are counted for
// all, so that zeros in their place would be taken for the moments of that many
// steps.
void check_has_all_of(
    const GradSync& sync,
    const std::vector<int64_t>& steps,
    const OptimizerState& state) {
  std::vector<std::string> missing;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Param& param = sync.params()[i];
    const bool keeps_some = std::any_of(
        param.states.begin(), param.states.end(), [](const State& kept) {
          return kept.name != kMasterLow;
        });
    if (steps[i] >= 0 && keeps_some && !state.of_param.contains(param.name))
      missing.push_back(param.name);
  }
  if (missing.empty() || state.of_param.empty())
    return;
  refuse_state(fmt::format(
      "has nothing of {}, which this optimizer steps: load one of the same "
      "parameters, or none",
      fmt::join(missing, ", ")));
}

const ParamFields*
find_fields(const GradSync& sync, const OptimizerState& state, int param) {
  const auto found =
      state.of_param.find(sync.params()[static_cast<size_t>(param)].name);
  return found == state.of_param.end() ? nullptr : &found->second;
}

// The fields of a stepped tensor: those of its parameters, which must have the
// same ones. Null if they have none.
const ParamFields* common_fields(
    const GradSync& sync,
    const std::vector<RunPart>& parts,
    const OptimizerState& state) {
  const ParamFields* first = find_fields(sync, state, parts[0].param);
  for (const RunPart& part : parts) {
    const ParamFields* fields = find_fields(sync, state, part.param);
    const auto step_of = [](const ParamFields* of) {
      return of == nullptr ? -1 : of->at(kStep).item<int64_t>();
    };
    if (step_of(fields) != step_of(first) ||
        (fields != nullptr && fields->size() != first->size())) {
      refuse_state(fmt::format(
          "has '{}' after {} steps and '{}' after {} (-1: never stepped), "
          "which are stepped as one here: give them parameter groups of their "
          "own",
          sync.params()[static_cast<size_t>(parts[0].param)].name,
          step_of(first),
          sync.params()[static_cast<size_t>(part.param)].name,
          step_of(fields)));
    }
  }
  return first;
}

// A state with these fields, all zero, of the tensor `like`.
std::unique_ptr<torch::optim::OptimizerParamState> make_zero_state(
    const torch::optim::Optimizer& optimizer,
    const ParamFields& fields,
    const torch::Tensor& like) {
  auto made = make_param_state(optimizer);
  const OptimizerFields into = fields_of(*made);
  if (into.step != nullptr)
    *into.step = fields.at(kStep).item<int64_t>();
  std::set<std::string> known = {kStep};
  for (const auto& [name, tensor] : into.tensors) {
    known.insert(name);
    if (fields.contains(name))
      *tensor = torch::zeros(like.sizes(), like.options());
  }
  for (const auto& [name, tensor] : fields) {
    if (!known.contains(name))
      refuse_state(fmt::format(
          "has '{}', which this optimizer does not keep: load it into one of "
          "the kind that it was gathered from",
          name));
  }
  return made;
}

// Makes states of zeros for every tensor that has some in `state`. Ranks differ
// in which parameters are stepped as one tensor, and so in the errors that this
// may find.
void make_zero_states(
    const GradSync& sync,
    torch::optim::Optimizer& optimizer,
    const OptimizerState& state) {
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& param : group.params()) {
      const auto parts = parts_of(sync, param);
      if (!parts || parts->empty())  // not the sync's, or padding
        continue;
      const ParamFields* fields = common_fields(sync, *parts, state);
      set_param_state(
          optimizer,
          param,
          fields == nullptr ? nullptr
                            : make_zero_state(optimizer, *fields, param));
    }
  }
}

// Sets the noted states to the loaded ones, and to zero where there are none.
void fill(const GradSync& sync, const OptimizerState& state) {
  const ParamSet& set = sync.param_set();
  for (int param = 0; param < static_cast<int>(sync.params().size()); ++param) {
    const ParamFields* fields = find_fields(sync, state, param);
    std::vector<State> whole = set.zero_states(param);
    for (State& each : whole) {
      if (fields != nullptr && fields->count(each.name) > 0)
        set_values(each, fields->at(each.name));
    }
    set.keep_states(param, whole);
  }
}

}  // namespace

void load_optimizer_state(
    GradSync& sync,
    torch::optim::Optimizer& optimizer,
    const OptimizerState& state) {
  const torch::NoGradGuard no_grad;
  check_is_of(sync, state);
  // Throws for an optimizer without such states on all ranks, also on those
  // that own padding alone.
  make_param_state(optimizer);
  std::string problem;
  try {
    make_zero_states(sync, optimizer, state);
  } catch (const DataError& error) {
    problem = error.what();
  }
  // All ranks must throw together: none may wait for one that refuses the
  // state.
  for (const std::string& each : Agreement(*sync.all_ranks()).texts(problem)) {
    if (!each.empty())
      throw DataError(each);
  }
  const NotedStates noted(sync, optimizer);
  fill(sync, state);
}

void load_optimizer_state(
    GradSync& sync,
    Optimizer& optimizer,
    const OptimizerState& state) {
  const torch::NoGradGuard no_grad;
  check_is_of(sync, state);
  optimizer.reload_masters();
  int64_t steps = 0;
  for (const auto& [name, fields] : state.of_param) {
    const auto step = fields.at(kStep).item<int64_t>();
    if (steps != 0 && step != steps)
      refuse_state(fmt::format(
          "has '{}' after {} steps and another parameter after {}: Brigade's "
          "optimizers count the steps of all",
          name,
          step,
          steps));
    steps = step;
  }
  const NotedStates noted(sync, optimizer);
  const ParamSet& set = sync.param_set();
  check_has_all_of(sync, noted.steps(), state);
  for (const auto& [name, fields] : state.of_param) {
    // A float32 weight has all of its master.
    std::set<std::string> known = {kStep, kMasterLow};
    for (const State& kept : set.zero_states(set.index_of(name)))
      known.insert(kept.name);
    for (const auto& [field, tensor] : fields) {
      if (!known.contains(field))
        refuse_state(fmt::format(
            "has '{}' of '{}', which this optimizer does not keep: load it "
            "into one of the kind that it was gathered from",
            field,
            name));
    }
    for (const State& kept : set.zero_states(set.index_of(name))) {
      if (kept.name != kMasterLow && !fields.contains(kept.name))
        refuse_state(fmt::format(
            "has no '{}' of '{}', which this optimizer keeps: load it into one "
            "of the kind that it was gathered from",
            kept.name,
            name));
    }
  }
  fill(sync, state);
  optimizer.set_steps(steps);
  optimizer.set_scalars(state.scalars);
}

}  // namespace brigade
