#include "brigade/optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/hash.h"
#include "brigade/ops/block_codes.h"
#include "brigade/ops/split_master.h"
#include "brigade/ops/stochastic_rounding.h"

namespace brigade {
namespace {

bool has_master(torch::ScalarType weight) {
  return weight != torch::kFloat;
}

void check(const OptimizerGroup& group) {
  const auto dtype = group.weight.scalar_type();
  if ((dtype == torch::kFloat || dtype == torch::kBFloat16) &&
      group.main_grad.scalar_type() == torch::kFloat &&
      group.weight.dim() == 1 && group.main_grad.dim() == 1 &&
      group.weight.is_contiguous() && group.main_grad.is_contiguous() &&
      group.weight.numel() == group.main_grad.numel())
    return;
  throw UsageError(fmt::format(
      "[optimizer] group '{}': weight is {} of {} elements, main_grad {} "
      "of {}; expected flat contiguous tensors of equal length, bf16 or "
      "float32, and float32",
      group.name,
      c10::toString(dtype),
      group.weight.numel(),
      c10::toString(group.main_grad.scalar_type()),
      group.main_grad.numel()));
}

// The master in float32; a float32 weight itself.
torch::Tensor master_of(const StepRange& range) {
  const torch::Tensor low = find_state(range.group.states, kMasterLow);
  return low.defined() ? ops::join_master(range.group.weight, low)
                       : range.group.weight;
}

void finish(const LateStep& late) {
  if (late.finish)
    late.finish();
}

// The number of elements whose moments are in float32 at a time.
constexpr int64_t kFloatNumel = int64_t{1} << 20;

// Whether a state of the optimizer's own must be made float32 for a step.
bool is_narrow(const State& state) {
  return state.scales.defined() ||
         state.tensor.scalar_type() == torch::kBFloat16;
}

bool has_narrow(const OptimizerGroup& group) {
  return std::any_of(group.states.begin(), group.states.end(), is_narrow);
}

// Throws UsageError unless the group's length, and the beginnings of parameters
// in it, are multiples of a block of codes.
void check_is_aligned(const OptimizerGroup& group) {
  const auto fits = [](int64_t numel) { return numel % kBlockNumel == 0; };
  const bool all_fit =
      fits(group.weight.numel()) &&
      std::all_of(
          group.parts.begin(), group.parts.end(), [&](const RunPart& part) {
            return fits(part.begin) && fits(part.offset);
          });
  if (all_fit)
    return;
  throw UsageError(fmt::format(
      "[optimizer] '{}' has {} elements, or a parameter in it begins, at no "
      "multiple of {}, the block that int8 moments share a scale in: wrap with "
      "GradSyncOptions::block_numel = {}",
      group.name,
      group.weight.numel(),
      kBlockNumel,
      kBlockNumel));
}

// The key is of the parameter's name, and the index says where the elements are
// in the whole parameter, so that random numbers are the same in every layout.
// In memory of unknown parameters the key is 0.
ops::RandomBits bits_of(const OptimizerGroup& group, const RunPart& part) {
  ops::RandomBits bits{.index = {.begin = part.begin}};
  if (!group.memory || group.memory->params.empty())
    return bits;
  const Param& param = group.memory->params[static_cast<size_t>(part.param)];
  bits.key = fnv1a_64(param.name);
  const Slice& slice = param.cut.slice;
  // A parameter without a row is whole.
  if (!param.row || slice.dim == kNotCut)
    return bits;
  const auto dim = static_cast<size_t>(slice.dim);
  int64_t inner = 1;
  for (size_t d = dim + 1; d < param.row->shape.size(); ++d)
    inner *= param.row->shape[d];
  bits.index.run = inner * param.cut.shape[dim];
  bits.index.stride = inner * param.row->shape[dim];
  bits.index.offset = inner * slice.begin;
  return bits;
}

// The same step with other memory.
StepRange with_memory(
    const StepRange& range,
    const OptimizerGroup& group,
    int64_t begin) {
  return {
      .index = range.index,
      .group = group,
      .lr = range.lr,
      .grad_scale = range.grad_scale,
      .step = range.step,
      .after_read = range.after_read,
      .begin = begin};
}

}  // namespace

void change_master(
    const StepRange& range,
    const std::function<void(torch::Tensor master)>& change) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor master = master_of(range);
  change(master);
  if (const auto low = find_state(range.group.states, kMasterLow);
      low.defined())
    ops::split_master(master, range.group.weight, low);
}

void check_has_rate(
    const OptimizerGroup& group,
    const std::vector<double>& lrs) {
  if (static_cast<size_t>(group.param_group) < lrs.size())
    return;
  throw UsageError(fmt::format(
      "[optimizer] {} learning rates, but '{}' is of parameter group {}, "
      "counted from 0: give one for each group, or a single number for all",
      lrs.size(),
      group.name,
      group.param_group));
}

Optimizer::Optimizer(
    std::vector<OptimizerGroup> groups,
    const OptimizerOptions& options)
    : groups_(std::move(groups)), options_(options) {
  const torch::NoGradGuard no_grad;
  for (OptimizerGroup& group : groups_) {
    group.weight = group.weight.detach();
    check(group);
    group.weights_version = group.memory ? group.memory->weights_version : 0;
  }
  make_states();
}

void Optimizer::make_states() {
  for (OptimizerGroup& group : groups_) {
    group.states.clear();
    for (const StateSpec& spec :
         kept(group.rule.unit, group.weight.scalar_type()))
      group.states.push_back(zero_state(spec, group.weight));
  }
}

std::vector<StateSpec> Optimizer::kept(StepUnit unit, torch::ScalarType weight)
    const {
  return optimizer_states(
      options_,
      unit,
      has_master(weight) ? WeightWidth::k16Bit : WeightWidth::k32Bit);
}

void Optimizer::follow_memory() {
  const FlatMemory* asked = nullptr;  // whose before_step ran last
  for (OptimizerGroup& group : groups_) {
    if (!group.memory)
      continue;
    if (!group.memory->is_current) {
      throw UsageError(fmt::format(
          "[optimizer] group '{}': its gradients and weights were moved to "
          "other memory after this optimizer was made (its DataParallel is "
          "gone, or BucketOrder::kObserved has planned again after the "
          "first step); make it again, with kObserved after the first backward "
          "at the earliest",
          group.name));
    }
    if (group.memory->before_step && group.memory.get() != asked)
      group.memory->before_step();
    asked = group.memory.get();
    if (group.memory->weights_version == group.weights_version)
      continue;
    group.weights_version = group.memory->weights_version;
    if (auto low = find_state(group.states, kMasterLow); low.defined())
      low.zero_();
  }
}

void Optimizer::begin_step(const std::vector<double>& lrs) {
  if (!hidden_.empty())
    throw UsageError(
        "[optim] a step while the averages have the weights' place: call "
        "hide_averages() first");
  follow_memory();
  ++steps_;
  begin(lrs);
}

StepRange Optimizer::range_of(
    size_t group,
    double lr,
    double grad_scale,
    ops::AfterRead after_read) const {
  return {
      .index = group,
      .group = groups_.at(group),
      .lr = lr * groups_[group].rule.rate,
      .grad_scale = grad_scale,
      .step = steps_,
      .after_read = after_read};
}

// Kernels write through pointers, so that versions are raised here: code that
// watches them must see that weights were stepped and gradients cleared.
void Optimizer::note_stepped(const StepRange& range) const {
  const OptimizerGroup& group = range.group;
  group.weight.unsafeGetTensorImpl()->bump_version();
  if (range.after_read == ops::AfterRead::kZero)
    group.main_grad.unsafeGetTensorImpl()->bump_version();
  if (group.memory && group.memory->after_step)
    group.memory->after_step(group.weight.numel());
}

void Optimizer::step_in_parts(const StepRange& range) {
  const int64_t most = has_narrow(range.group)
                           ? std::min(max_numel(), kFloatNumel)
                           : max_numel();
  in_parts(range, most, [this](const StepRange& part) {
    with_float_states(part, [this](const StepRange& of) { step_range(of); });
  });
}

void Optimizer::in_parts(
    const StepRange& range,
    int64_t most,
    const std::function<void(const StepRange& part)>& step) {
  const int64_t numel = range.group.weight.numel();
  if (numel <= most) {
    step(range);
    return;
  }
  for (int64_t begin = 0; begin < numel; begin += most) {
    const int64_t part_numel = std::min(most, numel - begin);
    OptimizerGroup group{
        .name = range.group.name,
        .weight = range.group.weight.narrow(0, begin, part_numel),
        .main_grad = range.group.main_grad.narrow(0, begin, part_numel),
        .rule = range.group.rule,
        .param_group = range.group.param_group};
    for (const State& state : range.group.states)
      group.states.push_back(narrow_state(state, begin, part_numel));
    step(with_memory(range, group, range.begin + begin));
  }
}

std::vector<State> Optimizer::float_states(
    const std::vector<State>& states) const {
  std::vector<State> result = states;
  for (State& state : result) {
    if (state.scales.defined())
      state = {
          state.name,
          ops::decode_blocks(
              state.tensor, state.scales, options_.adamw.kernels)};
    else if (is_narrow(state))
      state.tensor = state.tensor.to(torch::kFloat);
  }
  return result;
}

void Optimizer::with_float_states(
    const StepRange& range,
    const std::function<void(const StepRange& range)>& step) const {
  if (!has_narrow(range.group)) {
    step(range);
    return;
  }
  OptimizerGroup group = range.group;
  group.states = float_states(range.group.states);
  step(with_memory(range, group, range.begin));
  for (size_t i = 0; i < group.states.size(); ++i) {
    const State& kept = range.group.states[i];
    const torch::Tensor& values = group.states[i].tensor;
    if (kept.scales.defined())
      ops::encode_blocks(
          values, kept.tensor, kept.scales, options_.adamw.kernels);
    else if (is_narrow(kept))
      keep_rounded(range, kept, values);
  }
}

// Padding belongs to no part, and stays zero.
void Optimizer::keep_rounded(
    const StepRange& range,
    const State& state,
    const torch::Tensor& values) const {
  const OptimizerGroup& group = groups_[range.index];
  for (const RunPart& part : group.parts) {
    const int64_t begin = std::max(part.offset, range.begin);
    const int64_t numel =
        std::min(part.offset + part.numel, range.begin + values.numel()) -
        begin;
    if (numel <= 0)
      continue;
    ops::RandomBits bits = bits_of(group, part);
    bits.index.begin += begin - part.offset;
    const uint64_t key = mix_bits(
        mix_bits(bits.key ^ fnv1a_64(state.name)) ^ mix_bits(options_.seed));
    bits.key = mix_bits(key + static_cast<uint64_t>(range.step));
    ops::round_stochastically(
        values.narrow(0, begin - range.begin, numel),
        state.tensor.narrow(0, begin - range.begin, numel),
        bits,
        options_.adamw.kernels);
  }
}

LateStep Optimizer::step_ranges(
    const std::vector<StepRange>& ranges,
    double /*grad_scale*/) {
  for (const StepRange& range : ranges) {
    step_in_parts(range);
    complete(range);
  }
  return {};
}

void Optimizer::complete(const StepRange& range) const {
  update_average(range);
  note_stepped(range);
}

void Optimizer::step_group(
    size_t index,
    double lr,
    double grad_scale,
    ops::AfterRead after_read) {
  const StepRange range = range_of(index, lr, grad_scale, after_read);
  begin_average(range);
  step_in_parts(range);
  complete(range);
}

void Optimizer::step(double lr, double grad_scale, ops::AfterRead after_read) {
  finish(start_step(lr, grad_scale, after_read));
}

LateStep
Optimizer::start_step(double lr, double grad_scale, ops::AfterRead after_read) {
  return start_all({lr}, grad_scale, after_read);
}

void Optimizer::step(
    const std::vector<double>& lrs,
    double grad_scale,
    ops::AfterRead after_read) {
  for (const OptimizerGroup& group : groups_)
    check_has_rate(group, lrs);
  finish(start_all(lrs, grad_scale, after_read));
}

LateStep Optimizer::start_all(
    const std::vector<double>& lrs,
    double grad_scale,
    ops::AfterRead after_read) {
  begin_step(lrs);
  std::vector<StepRange> ranges;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const auto rate = static_cast<size_t>(groups_[i].param_group);
    ranges.push_back(range_of(
        i, lrs.size() == 1 ? lrs[0] : lrs[rate], grad_scale, after_read));
    begin_average(ranges.back());
  }
  return step_ranges(ranges, grad_scale);
}

void Optimizer::keep_average(double decay) {
  options_.ema_decay = decay;
  make_states();
}

void Optimizer::keep_moments_in(MomentDtype dtype, uint64_t seed) {
  const std::string problem = why_not_kept_in(dtype, options_);
  if (!problem.empty())
    throw UsageError("[optimizer] " + problem);
  options_.moments = dtype;
  options_.seed = seed;
  for (const OptimizerGroup& group : groups_) {
    if (dtype == MomentDtype::kInt8)
      check_is_aligned(group);
  }
  make_states();
}

void Optimizer::begin_average(const StepRange& range) const {
  if (options_.ema_decay > 0 && range.step == 1)
    find_state(range.group.states, kEma).copy_(master_of(range));
}

void Optimizer::update_average(const StepRange& range) const {
  const torch::NoGradGuard no_grad;
  if (options_.ema_decay > 0)
    find_state(range.group.states, kEma)
        .lerp_(master_of(range), 1 - options_.ema_decay);
}

torch::Tensor Optimizer::average(
    const torch::Tensor& master,
    const std::vector<State>& states) const {
  const torch::Tensor ema = find_state(states, kEma);
  return ema.defined() && steps_ > 0 ? ema : master;
}

void Optimizer::show_averages() {
  if (!averages_weights() || !hidden_.empty())
    return;
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const StepRange range = range_of(i, 0, 1, ops::AfterRead::kKeep);
    const torch::Tensor low = find_state(range.group.states, kMasterLow);
    hidden_.push_back({"weight", range.group.weight.clone()});
    hidden_.push_back(
        {kMasterLow, low.defined() ? low.clone() : torch::Tensor()});
    change_master(range, [&](torch::Tensor master) {
      master.copy_(average(master, range.group.states));
    });
  }
}

void Optimizer::hide_averages() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; 2 * i < hidden_.size(); ++i) {
    torch::Tensor(groups_[i].weight).copy_(hidden_[2 * i].tensor);
    if (auto low = find_state(groups_[i].states, kMasterLow); low.defined())
      low.copy_(hidden_[2 * i + 1].tensor);
  }
  hidden_.clear();
}

torch::Tensor Optimizer::squared_gradients() const {
  torch::Tensor sum;
  for (const OptimizerGroup& group : groups_) {
    const auto part =
        ops::sum_of_squares(group.main_grad, options_.adamw.kernels);
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

void Optimizer::reload_masters() {
  for (OptimizerGroup& group : groups_) {
    if (group.memory)
      group.weights_version = group.memory->weights_version;
    if (auto low = find_state(group.states, kMasterLow); low.defined())
      low.zero_();
  }
}

}  // namespace brigade
