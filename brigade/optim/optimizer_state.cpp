#include "brigade/optim/optimizer_state.h"

#include <fmt/format.h>

#include "brigade/base/error.h"
#include "brigade/optim/optimizer_groups.h"
#include "brigade/optim/param_states.h"
#include "brigade/optim/torch_optimizer_fields.h"

namespace brigade {
namespace {

OptimizerState gather(const GradSync& sync, const NotedStates& noted, int to) {
  OptimizerState result;
  for (const FlatSegment& segment : sync.segments()) {
    const auto whole = sync.param_set().gather_states(segment);
    if (sync.all_ranks()->rank() != to)
      continue;
    for (size_t s = 0; s < whole.size(); ++s) {
      const auto param = static_cast<size_t>(segment.slots[s].param);
      if (whole[s].empty())  // nobody steps it
        continue;
      auto& fields = result.of_param[sync.params()[param].name];
      fields["step"] = torch::tensor(noted.steps()[param]);
      for (const State& state : whole[s])
        fields[state.name] = values_of(state).clone();
    }
  }
  return result;
}

// Throws UsageError if the optimizer has states of other tensors, which differ
// between ranks.
void check_is_synchronised(
    const GradSync& sync,
    const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& param : group.params()) {
      if (find_param_state(optimizer, param) != nullptr &&
          !parts_of(sync, param)) {
        throw UsageError(fmt::format(
            "[data_parallel] the optimizer has a state of a tensor of shape {} "
            "that is not synchronised (WrapOptions::ignore): it is each rank's "
            "own; give it an optimizer of its own",
            c10::str(param.sizes())));
      }
    }
  }
}

}  // namespace

torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive,
    const OptimizerState& state) {
  c10::List<std::string> names;
  for (const auto& [name, fields] : state.of_param) {
    torch::serialize::OutputArchive each(archive.compilation_unit());
    for (const auto& [field, tensor] : fields)
      each.write(field, tensor, /*is_buffer=*/true);
    archive.write(fmt::format("param{}", names.size()), each);
    names.push_back(name);
  }
  archive.write("names", c10::IValue(names));
  if (state.scalars.empty())
    return archive;
  c10::Dict<std::string, double> scalars;
  for (const auto& [name, value] : state.scalars)
    scalars.insert(name, value);
  archive.write("scalars", c10::IValue(scalars));
  return archive;
}

torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive,
    OptimizerState& state) {
  c10::IValue names;
  archive.read("names", names);
  state.of_param.clear();
  int index = 0;
  for (const c10::IValue& name : names.toListRef()) {
    torch::serialize::InputArchive each;
    archive.read(fmt::format("param{}", index++), each);
    for (const std::string& field : each.keys())
      each.read(
          field,
          state.of_param[name.toStringRef()][field],
          /*is_buffer=*/true);
  }
  state.scalars.clear();
  c10::IValue scalars;
  if (!archive.try_read("scalars", scalars))
    return archive;
  for (const auto& item : scalars.toGenericDict())
    state.scalars[item.key().toStringRef()] = item.value().toDouble();
  return archive;
}

OptimizerState gather_optimizer_state(
    GradSync& sync,
    const torch::optim::Optimizer& optimizer,
    int to) {
  const torch::NoGradGuard no_grad;
  check_is_synchronised(sync, optimizer);
  return gather(sync, NotedStates(sync, optimizer), to);
}

OptimizerState
gather_optimizer_state(GradSync& sync, const Optimizer& optimizer, int to) {
  const torch::NoGradGuard no_grad;
  const NotedStates noted(sync, optimizer);
  if (optimizer.steps() == 0)
    return {};
  OptimizerState result = gather(sync, noted, to);
  if (sync.all_ranks()->rank() == to)
    result.scalars = optimizer.scalars();
  return result;
}

}  // namespace brigade
