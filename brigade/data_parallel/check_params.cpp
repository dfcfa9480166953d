#include "brigade/data_parallel/check_params.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/data_parallel/grad_hooks.h"
#include "brigade/data_parallel/same_on_ranks.h"
#include "brigade/data_parallel/shared_memory.h"

namespace brigade {
namespace {

std::string
problem_of(const Param& param, torch::Device device, FlatWeights weights) {
  const auto dtype = param.tensor.scalar_type();
  if (param.tensor.device() != device) {
    return fmt::format(
        "parameter '{}' is on device {}, but its communicator moves tensors of "
        "{}; move the module before wrapping it",
        param.name,
        param.tensor.device().str(),
        device.is_cpu() ? "the CPU" : device.str());
  }
  if (at::isComplexType(dtype)) {
    return fmt::format(
        "parameter '{}' has dtype {}: complex parameters cannot be "
        "synchronised; register its real and imaginary parts",
        param.name,
        c10::toString(dtype));
  }
  if (!at::isFloatingType(dtype)) {
    return fmt::format(
        "parameter '{}' has dtype {}: only floating-point parameters have "
        "gradients",
        param.name,
        c10::toString(dtype));
  }
  if (param.is_row_sparse && param.tensor.dim() != 2) {
    return fmt::format(
        "parameter '{}' is declared row-sparse, but has {} dims; only a matrix "
        "has rows",
        param.name,
        param.tensor.dim());
  }
  if (weights == FlatWeights::kMove && param.tensor.requires_grad() &&
      !param.shares_memory_with.empty()) {
    return fmt::format(
        "parameter '{}' shares memory with '{}', and handover = kMainGrad, "
        "which all sharding needs, would move the one and untie them: use one "
        "tensor in both places, or set handover = GradHandover::kParamDtype",
        param.name,
        param.shares_memory_with);
  }
  if (const std::string other = WrappedMemory::name_of_sharer(param, weights);
      !other.empty()) {
    return fmt::format(
        "parameter '{}' shares memory with '{}' of another module that is "
        "wrapped, and handover = kMainGrad, which all sharding needs, moves "
        "the one and unties them: wrap one module that has both, or set "
        "handover = GradHandover::kParamDtype for both",
        param.name,
        other);
  }
  if (param.tensor.requires_grad() && has_grad_hooks(param.tensor)) {
    return fmt::format(
        "parameter '{}' is already synchronised: its module was wrapped "
        "before; wrap it once, or destroy the other wrapper first",
        param.name);
  }
  return {};
}

// The reason why this rank's parameters cannot be wrapped; empty if there is
// none.
std::string first_problem(
    std::span<const Param> params,
    torch::Device device,
    FlatWeights weights) {
  bool is_any_trainable = false;
  for (const Param& param : params) {
    if (auto problem = problem_of(param, device, weights); !problem.empty())
      return problem;
    is_any_trainable = is_any_trainable || param.tensor.requires_grad();
  }
  if (is_any_trainable)
    return {};
  return "nothing to synchronise: the module has no parameter that requires a "
         "gradient; register its parameters and turn requires_grad on before "
         "wrapping it";
}

// Notes parameters that share memory with each other; parameters_of() knows the
// module's other tensors.
void note_sharers(std::vector<Param>& params) {
  std::vector<State> tensors;
  for (const Param& param : params)
    tensors.push_back({param.name, param.tensor});
  const auto sharers = names_of_sharers(tensors);
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].shares_memory_with.empty())
      params[i].shares_memory_with = sharers[i];
  }
}

void check_all_can_wrap(const std::string& mine, const Agreement& agreement) {
  const auto others = agreement.find_difference(mine);
  if (!mine.empty())
    throw UsageError("[data_parallel] " + mine);
  if (!others)
    return;
  const bool is_of_rank_0 = !others->of_rank_0.empty();
  throw UsageError(fmt::format(
      "[data_parallel] rank {} cannot wrap its module: {}",
      is_of_rank_0 ? 0 : others->rank,
      is_of_rank_0 ? others->of_rank_0 : others->of_rank));
}

// One line per parameter: "name: [2, 3] Float". For a parameter of another
// group than `group` the line has what all ranks have in common: its group's
// size.
std::string describe(
    std::span<const Param> params,
    const CommunicatorPtr& group) {
  std::string text;
  for (const Param& param : params) {
    const torch::Tensor& tensor = param.tensor;
    if (param.group != group) {
      text += fmt::format(
          "a parameter of groups of {} ranks\n", param.group->size());
      continue;
    }
    text += fmt::format(
        "{}: [{}] {}",
        param.name,
        fmt::join(tensor.sizes(), ", "),
        c10::toString(tensor.scalar_type()));
    if (!tensor.is_contiguous())
      text += fmt::format(", strides [{}]", fmt::join(tensor.strides(), ", "));
    if (!tensor.requires_grad())
      text += param.shares_memory_with.empty() ? ", frozen"
                                               : ", frozen, shares memory";
    if (param.mean_divisor != 0)
      text += fmt::format(", a mean over {}", param.mean_divisor);
    if (param.is_row_sparse)
      text += ", sparse rows";
    if (param.unit > 0)
      text += fmt::format(", unit {}", param.unit);
    if (param.has_sparse_gradient)
      text += ", sparse gradients";
    if (param.compute_copy.defined())
      text += fmt::format(
          ", computes in {}", c10::toString(param.compute_copy.scalar_type()));
    text += '\n';
  }
  return text;
}

void check_same_params(
    std::span<const Param> params,
    const std::string& options,
    const CommunicatorPtr& group) {
  const auto found = Agreement(*group).find_difference(
      describe(params, group) + '\n' + options);
  if (!found)
    return;
  // An empty line separates parameters from options.
  const size_t end = found->of_rank_0.find("\n\n");
  const size_t other_end = found->of_rank.find("\n\n");
  const auto param = first_line_difference(
      found->of_rank_0.substr(0, end), found->of_rank.substr(0, other_end));
  if (param.here != param.there) {
    throw CommError(fmt::format(
        "[data_parallel] replicas differ in group '{}' at parameter {}: rank 0 "
        "has '{}', rank {} has '{}'; build the same module on every rank",
        group->name(),
        param.index,
        param.here,
        found->rank,
        param.there));
  }
  const auto option = first_line_difference(
      found->of_rank_0.substr(end + 2), found->of_rank.substr(other_end + 2));
  throw CommError(fmt::format(
      "[data_parallel] options differ in group '{}': rank 0 has '{}', rank {} "
      "has '{}'; give every rank the same options",
      group->name(),
      option.here,
      found->rank,
      option.there));
}

// Compares within each group that is not all ranks; all ranks learn of a
// difference in one.
void check_same_groups(
    std::span<const Param> params,
    const CommunicatorPtr& all) {
  std::set<CommunicatorPtr> checked{all};
  std::string difference;
  for (const Param& param : params) {
    if (!checked.insert(param.group).second)
      continue;
    try {
      check_same_params(params, /*options=*/"", param.group);
    } catch (const CommError& error) {
      difference = error.what();
    }
  }
  if (checked.size() == 1)
    return;
  const auto others = Agreement(*all).find_difference(difference);
  if (!difference.empty())
    throw CommError(difference);
  if (others)
    throw CommError(
        others->of_rank_0.empty() ? others->of_rank : others->of_rank_0);
}

}  // namespace

std::vector<Param> check_params(
    std::vector<Param> params,
    const std::string& options,
    FlatWeights weights,
    const CommunicatorPtr& all) {
  note_sharers(params);
  check_all_can_wrap(
      first_problem(params, all->options().device, weights), Agreement(*all));
  for (Param& param : params) {
    if (param.group == nullptr)
      param.group = all;
    param.dtype = param.tensor.scalar_type();
    param.cut.shape = param.tensor.sizes().vec();
    // A frozen parameter has no gradient.
    param.has_sparse_gradient =
        param.has_sparse_gradient && param.tensor.requires_grad();
  }
  check_same_params(params, options, all);
  check_same_groups(params, all);
  return params;
}

void check_unchanged(const ParamSet& params) {
  for (const Param& param : params.trained()) {
    if (!param.tensor.requires_grad()) {
      throw UsageError(fmt::format(
          "[data_parallel] requires_grad of '{}' was turned off after "
          "wrapping; freeze parameters before wrapping, or wrap again",
          param.name));
    }
    if (param.tensor.scalar_type() != param.dtype &&
        !param.is_replaced_by_copy()) {
      throw UsageError(fmt::format(
          "[data_parallel] '{}' was {} when it was wrapped and is {} now; "
          "convert the module before wrapping it",
          param.name,
          c10::toString(param.dtype),
          c10::toString(param.tensor.scalar_type())));
    }
    if (param.tensor.sizes() != torch::IntArrayRef(param.cut.shape)) {
      throw UsageError(fmt::format(
          "[data_parallel] '{}' had shape [{}] when it was wrapped and has "
          "[{}] now; load weights of the same module, or wrap again",
          param.name,
          fmt::join(param.cut.shape, ", "),
          fmt::join(param.tensor.sizes(), ", ")));
    }
  }
  for (const Param& param : params.frozen()) {
    if (param.tensor.requires_grad()) {
      throw UsageError(fmt::format(
          "[data_parallel] requires_grad of '{}' was turned on after "
          "wrapping; wrap again to synchronise it",
          param.name));
    }
  }
}

std::vector<int64_t> max_in_groups(
    const std::vector<int64_t>& values,
    std::span<const Param> params) {
  std::vector<int64_t> result(values.size());
  for (const auto& members : groups_of(params)) {
    std::vector<int64_t> mine;
    for (const size_t param : members)
      mine.push_back(values[param]);
    const Agreement agreement(*params[members.front()].group);
    const auto highest = agreement.max(mine);
    for (size_t i = 0; i < highest.size(); ++i)
      result[members[i]] = highest[i];
  }
  return result;
}

void check_has_one_group(
    std::span<const Param> params,
    const Communicator& all) {
  for (const Param& param : params) {
    if (param.group.get() != &all) {
      throw UsageError(fmt::format(
          "[data_parallel] uneven inputs with '{}', which is reduced over "
          "group '{}': ranks with data are counted over group '{}' alone; give "
          "every rank the same number of steps",
          param.name,
          param.group->name(),
          all.name()));
    }
  }
}

void broadcast_params(std::span<const Param> params, int root) {
  for (const auto& members : groups_of(params)) {
    std::vector<torch::Tensor> values;
    for (const size_t param : members)
      values.push_back(params[param].tensor);
    broadcast_tensors(values, root, *params[members.front()].group);
  }
}

void broadcast_tensors(
    const std::vector<torch::Tensor>& tensors,
    int root,
    Communicator& group) {
  const torch::NoGradGuard no_grad;
  std::vector<WorkPtr> works;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;
  for (const auto& tensor : tensors) {
    auto contiguous = tensor.detach().contiguous();
    works.push_back(group.broadcast(contiguous, root));
    if (!contiguous.is_alias_of(tensor))
      copies.emplace_back(tensor.detach(), contiguous);
  }
  for (const auto& work : works)
    work->wait();
  for (auto& [tensor, contiguous] : copies)
    tensor.copy_(contiguous);
}

}  // namespace brigade
