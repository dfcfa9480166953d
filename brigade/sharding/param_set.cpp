#include "brigade/sharding/param_set.h"

#include <algorithm>
#include <utility>

#include "brigade/sharding/sharded_weights.h"

namespace brigade {
namespace {

// A copy of `param` whose tensor has no graph.
Param detached(const Param& param) {
  Param result = param;
  result.tensor = param.tensor.detach();
  return result;
}

State shaped(State flat, torch::IntArrayRef sizes) {
  flat.tensor = flat.tensor.view(sizes);
  return flat;
}

bool is_same_kind(const State& a, const State& b) {
  return a.name == b.name && a.tensor.scalar_type() == b.tensor.scalar_type();
}

// The state of that kind; null: there is none.
const State* find_kind(const std::vector<State>& states, const State& kind) {
  const auto found =
      std::find_if(states.begin(), states.end(), [&](const State& state) {
        return is_same_kind(state, kind);
      });
  return found == states.end() ? nullptr : &*found;
}

// The index in the parameter of the first element of `mine`.
int64_t first_element(const Param& param, const State& mine) {
  return mine.tensor.numel() == param.tensor.numel() ? 0 : param.owned.begin;
}

// Gathers all ranks' ranges of a segment's state, each in its place.
void gather_ranges(const FlatSegment& segment, const State& whole) {
  const FlatRange& range = segment.owned;
  const State mine = narrow_state(whole, range.begin, range.numel);
  Communicator& ranks = *segment.first_param->group;
  ranks.all_gather(whole.tensor, mine.tensor)->wait_on_host();
  if (whole.scales.defined())
    ranks.all_gather(whole.scales, mine.scales)->wait_on_host();
}

}  // namespace

ParamSet::ParamSet(std::vector<Param> params) : params_(std::move(params)) {
  const auto first_frozen = std::stable_partition(
      params_.begin(), params_.end(), [](const Param& param) {
        return param.tensor.requires_grad();
      });
  const auto first_apart = std::stable_partition(
      first_frozen, params_.end(), [](const Param& param) {
        return param.shares_memory_with.empty();
      });
  trained_ = static_cast<size_t>(first_frozen - params_.begin());
  laid_out_ = static_cast<size_t>(first_apart - params_.begin());
  for (size_t i = 0; i < trained_; ++i)
    index_of_[params_[i].tensor.unsafeGetTensorImpl()] = static_cast<int>(i);
}

// ---- the list

int ParamSet::index_of(const torch::Tensor& param) const {
  const auto found = index_of_.find(param.unsafeGetTensorImpl());
  return found == index_of_.end() ? -1 : found->second;
}

int ParamSet::index_of(const std::string& name) const {
  for (size_t i = 0; i < trained_; ++i) {
    if (params_[i].name == name)
      return static_cast<int>(i);
  }
  return -1;
}

void ParamSet::regroup(const CommunicatorPtr& from, const CommunicatorPtr& to) {
  for (Param& param : params_) {
    if (param.group == from)
      param.group = to;
  }
}

// ---- memory

void ParamSet::lay_out(
    const BucketPlan& plan,
    const BucketPlanOptions& options,
    FlatWeights place,
    Sharding sharding,
    GatherMode gather) {
  const std::span<Param> laid_out{params_.data(), laid_out_};
  memory_ = std::make_unique<ParamMemory>(
      with_frozen(plan, laid_out, sharding, options),
      laid_out,
      place,
      sharding);
  weights_ = std::make_unique<GatheredWeights>(*memory_, gather);
}

void ParamSet::move_to(
    const BucketPlan& plan,
    const BucketPlanOptions& options) {
  const GatherMode gather = weights_->mode();
  weights_.reset();
  memory_->move_to(
      with_frozen(plan, memory_->params(), memory_->sharding(), options));
  weights_ = std::make_unique<GatheredWeights>(*memory_, gather);
}

// ---- states

ParamSet::StatesByParam ParamSet::swap_states(StatesByParam mine) {
  for (size_t i = 0; i < trained_; ++i)
    std::swap(params_[i].states, mine.at(i));
  return mine;
}

std::vector<std::vector<State>> ParamSet::gather_states(
    const FlatSegment& segment) const {
  std::vector<std::vector<State>> result;
  if (!is_sharded()) {
    for (const RunPart& slot : segment.slots)
      result.push_back(with_whole_states(param(slot.param)).states);
    return result;
  }
  // Each rank puts its part of every parameter into place, and the ranges are
  // gathered as the weights' are, all states of one kind at once.
  std::vector<State> kinds;
  for (const RunPart& slot : segment.slots) {
    const std::vector<State>& states = param(slot.param).states;
    result.push_back(states);
    for (const State& state : states) {
      if (find_kind(kinds, state) == nullptr)
        kinds.push_back(state);
    }
  }
  for (const State& kind : kinds) {
    const State whole = zero_state(kind, {segment.weight.numel()});
    for (const RunPart& slot : segment.slots) {
      const State* mine = find_kind(param(slot.param).states, kind);
      if (mine == nullptr || mine->tensor.numel() == 0)
        continue;
      const int64_t begin =
          slot.offset + first_element(param(slot.param), *mine);
      copy_state(narrow_state(whole, begin, mine->tensor.numel()), *mine);
    }
    gather_ranges(segment, whole);
    for (size_t s = 0; s < segment.slots.size(); ++s) {
      const RunPart& slot = segment.slots[s];
      for (State& state : result[s]) {
        if (is_same_kind(state, kind))
          state = shaped(
              narrow_state(whole, slot.offset, slot.numel),
              param(slot.param).tensor.sizes());
      }
    }
  }
  return result;
}

std::vector<State> ParamSet::zero_states(int param) const {
  const Param& of = params_[static_cast<size_t>(param)];
  std::vector<State> zeros;
  for (const State& state : of.states)
    zeros.push_back(zero_state(state, of.tensor.sizes()));
  return zeros;
}

void ParamSet::keep_states(int param, const std::vector<State>& whole) const {
  const Param& of = params_[static_cast<size_t>(param)];
  for (size_t k = 0; k < of.states.size(); ++k) {
    const State& mine = of.states[k];
    const State flat = shaped(whole[k], {-1});
    if (mine.tensor.numel() > 0)
      copy_state(
          mine,
          narrow_state(flat, first_element(of, mine), mine.tensor.numel()));
  }
}

// ---- the walks

Param ParamSet::with_whole_states(const Param& param) const {
  Param result = detached(param);
  for (State& state : result.states) {
    const auto sizes = param.tensor.sizes();
    const bool is_there = state.tensor.numel() == param.tensor.numel();
    state = is_there ? shaped(state, sizes) : zero_state(state, sizes);
  }
  return result;
}

void ParamSet::visit(const Visit& visit) const {
  weights_->need_all();
  if (is_sharded()) {
    visit_sharded(visit);
  } else {
    for (const Param& param : trained())
      visit(with_whole_states(param));
  }
  visit_frozen(visit);
}

void ParamSet::visit_frozen(const Visit& visit) const {
  HeldUnit held(*weights_);
  for (const Param& param : frozen()) {
    // A parameter that shares memory is whole on every rank.
    if (param.shares_memory_with.empty())
      held.hold(param.unit);
    visit(detached(param));
  }
}

void ParamSet::visit_sharded(const Visit& visit) const {
  const torch::NoGradGuard no_grad;
  HeldUnit held(*weights_);
  for (const FlatSegment& segment : memory_->segments()) {
    auto whole = gather_states(segment);
    held.hold(segment.first_param->unit);
    for (size_t s = 0; s < segment.slots.size(); ++s) {
      Param each = detached(param(segment.slots[s].param));
      each.states = std::move(whole[s]);
      visit(each);
    }
  }
}

void ParamSet::fill(const Visit& fill) {
  weights_->need_all();
  if (is_sharded()) {
    fill_sharded(fill);
    return;
  }
  for (const Param& param : trained())
    fill(with_whole_states(param));
  visit_frozen(fill);
}

void ParamSet::fill_sharded(const Visit& fill) {
  const torch::NoGradGuard no_grad;
  ShardedWeights* units = weights_->units();
  visit_frozen([&](const Param& param) {
    fill(param);
    if (units != nullptr && param.shares_memory_with.empty())
      units->keep_changes(param.unit);
  });
  HeldUnit held(*weights_);
  for (int i = 0; i < static_cast<int>(trained_); ++i) {
    const RunPart& owned = param(i).owned;
    const FlatSegment& segment = memory_->segments()[owned.run];
    held.hold(param(i).unit);
    Param each = detached(param(i));
    each.states = zero_states(i);
    fill(each);
    if (segment.weight_shard.defined())
      segment.weight_shard.narrow(0, owned.offset, owned.numel)
          .copy_(each.tensor.view({-1}).narrow(0, owned.begin, owned.numel));
    keep_states(i, each.states);
  }
  held.let_go();
  if (units != nullptr) {
    units->accept_writes();
    weights_->after_step();
  }
}

std::vector<std::pair<CommunicatorPtr, std::vector<State>>> ParamSet::replicas()
    const {
  weights_->need_all();
  if (weights_->units() != nullptr)
    return {};
  std::vector<std::pair<CommunicatorPtr, std::vector<State>>> result;
  for (const auto list : {frozen(), trained()}) {
    for (const auto& members : groups_of(list)) {
      std::vector<State>& tensors =
          result.emplace_back(list[members.front()].group, std::vector<State>())
              .second;
      for (const size_t i : members)
        tensors.push_back({list[i].name, list[i].tensor.detach()});
      for (const size_t i : members) {
        if (is_sharded())
          continue;
        for (const State& state : with_whole_states(list[i]).states) {
          const std::string name = state.name + "." + list[i].name;
          tensors.push_back({name, state.tensor});
          if (state.scales.defined())
            tensors.push_back({"scales of " + name, state.scales});
        }
      }
    }
  }
  return result;
}

}  // namespace brigade
