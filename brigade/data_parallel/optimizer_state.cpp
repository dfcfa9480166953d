#include "brigade/data_parallel/optimizer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "brigade/data_parallel/param_states.h"
#include "brigade/data_parallel/stepped_tensors.h"

namespace brigade {
namespace {

using Fields = std::vector<std::string>;

// Every field that one of torch::optim has.
const Fields& torch_fields() {
  static const Fields fields = {
      "exp_avg",
      "exp_avg_sq",
      "max_exp_avg_sq",
      "momentum_buffer",
      "square_avg",
      "grad_avg",
      "sum"};
  return fields;
}

// Of each parameter a row: steps + 1, or 0 without state; then 1 for each of
// `names` that it has. Collective: what any rank has.
torch::Tensor agree_on_fields(
    const GradSync& sync,
    const std::vector<SteppedTensor>& all,
    const Fields& names) {
  auto table = torch::zeros(
      {static_cast<int64_t>(sync.params().size()),
       static_cast<int64_t>(1 + names.size())},
      torch::kLong);
  for (const SteppedTensor& stepped : all) {
    for (const RunPart& part : stepped.parts) {
      auto row = table[part.param];
      row[0] = stepped.has_state ? stepped.step + 1 : 0;
      for (size_t f = 0; stepped.has_state && f < names.size(); ++f)
        row[static_cast<int64_t>(f) + 1] =
            static_cast<int64_t>(stepped.fields.count(names[f]));
    }
  }
  sync.all_ranks()->all_reduce(table, ReduceOp::kMax)->wait_on_host();
  return table;
}

// A field of all of a segment. Collective with sharding.
torch::Tensor whole_field(
    const GradSync& sync,
    const std::vector<SteppedTensor>& all,
    size_t index,
    const std::string& field) {
  const FlatSegment& segment = sync.segments()[index];
  const auto whole = torch::zeros_like(segment.main_grad);
  const auto owned = whole.narrow(0, segment.owned.begin, segment.owned.numel);
  for (const SteppedTensor& stepped : all) {
    const auto found = stepped.fields.find(field);
    if (stepped.segment == index && found != stepped.fields.end())
      owned.narrow(0, stepped.offset, found->second.numel())
          .copy_(found->second);
  }
  if (sync.options().sharding != Sharding::kNone)
    segment.group.ranks->all_gather(whole, owned)->wait_on_host();
  return whole;
}

OptimizerState gather(
    const GradSync& sync,
    const std::vector<SteppedTensor>& all,
    const Fields& names,
    int to) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor table = agree_on_fields(sync, all, names);
  const bool is_mine = sync.all_ranks()->rank() == to;
  OptimizerState state;
  const auto add = [&](int param, const std::string& field, torch::Tensor t) {
    if (is_mine)
      state.of_param[sync.params()[static_cast<size_t>(param)].name].emplace(
          field, std::move(t));
  };
  for (int64_t param = 0; param < table.size(0); ++param) {
    const auto steps = table[param][0].item<int64_t>();
    if (steps > 0)
      add(static_cast<int>(param), "step", torch::tensor(steps - 1));
  }
  for (const SteppedTensor& stepped : all) {
    if (stepped.segment)
      continue;
    for (const auto& [field, tensor] : stepped.fields)
      add(stepped.parts[0].param, field, tensor.clone());
  }
  if (sync.options().handover != GradHandover::kMainGrad)
    return state;
  for (size_t f = 0; f < names.size(); ++f) {
    for (size_t s = 0; s < sync.segments().size(); ++s) {
      const auto& slots = sync.segments()[s].slots;
      const auto has_field = [&](const BucketSlot& slot) {
        return table[slot.param][static_cast<int64_t>(f) + 1].item<int64_t>() !=
               0;
      };
      if (std::none_of(slots.begin(), slots.end(), has_field))
        continue;
      const auto whole = whole_field(sync, all, s, names[f]);
      for (const BucketSlot& slot : slots) {
        const auto& param = sync.params()[static_cast<size_t>(slot.param)];
        if (has_field(slot))
          add(slot.param,
              names[f],
              whole.narrow(0, slot.offset_numel, slot.numel)
                  .view(param.tensor.sizes())
                  .clone());
      }
    }
  }
  return state;
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
    const GradSync& sync,
    const torch::optim::Optimizer& optimizer,
    int to) {
  return gather(sync, stepped_by(sync, optimizer), torch_fields(), to);
}

OptimizerState gather_optimizer_state(
    const GradSync& sync,
    const Optimizer& optimizer,
    int to) {
  const torch::NoGradGuard no_grad;
  const ParamStates states(sync, optimizer);
  OptimizerState result;
  if (optimizer.steps() == 0)
    return result;
  const bool is_mine = sync.all_ranks()->rank() == to;
  if (is_mine)
    result.scalars = optimizer.scalars();
  for (const FlatSegment& segment : sync.segments()) {
    const auto whole = states.gather(segment);
    for (size_t s = 0; is_mine && s < whole.size(); ++s) {
      if (whole[s].empty())  // nobody steps it
        continue;
      const auto param = static_cast<size_t>(segment.slots[s].param);
      auto& fields = result.of_param[sync.params()[param].name];
      fields["step"] = torch::tensor(optimizer.steps());
      for (const State& state : whole[s])
        fields[state.name] = values_of(state).clone();
    }
  }
  return result;
}

}  // namespace brigade
