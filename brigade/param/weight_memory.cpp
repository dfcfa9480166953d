#include "brigade/param/weight_memory.h"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/ops/releasable_memory.h"

namespace brigade {

torch::Tensor FlatSegment::owned_weight() const {
  return weight_shard.defined() ? weight_shard
                                : weight.narrow(0, owned.begin, owned.numel);
}

torch::Tensor FlatSegment::owned_main_grad() const {
  return grad_shard.defined() ? grad_shard
                              : main_grad.narrow(0, owned.begin, owned.numel);
}

bool is_same_memory(const torch::Tensor& a, const torch::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset();
}

bool is_16_bit(torch::ScalarType dtype) {
  return dtype == torch::kBFloat16 || dtype == torch::kHalf;
}

torch::ScalarType main_grad_dtype(torch::ScalarType param) {
  return is_16_bit(param) ? torch::kFloat : param;
}

std::vector<BucketParam> bucket_params_of(const std::vector<Param>& params) {
  std::vector<BucketParam> result;
  result.reserve(params.size());
  std::vector<int> group_of(params.size());
  const auto groups = groups_of(params);
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const size_t param : groups[group])
      group_of[param] = static_cast<int>(group);
  }
  for (const Param& param : params) {
    const auto dtype = param.tensor.scalar_type();
    result.push_back(
        {.name = param.name,
         // Sparse gradients lie outside of the flat memory.
         .numel = param.has_sparse_gradient ? 0 : param.tensor.numel(),
         .dtype = c10::toString(dtype),
         .grad_element_bytes =
             static_cast<int64_t>(c10::elementSize(main_grad_dtype(dtype))),
         .sparse_row_numel = param.is_row_sparse && !param.has_sparse_gradient
                                 ? param.tensor.size(1)
                                 : 0,
         .has_own_bucket = param.has_own_bucket,
         .unit = param.unit,
         .group = group_of[result.size()]});
  }
  return result;
}

BucketPlan with_frozen(
    BucketPlan plan,
    const std::vector<Param>& params,
    const BucketPlanOptions& options) {
  size_t trained = 0;
  for (const PlannedBucket& bucket : plan.buckets)
    trained += bucket.slots.size();
  const auto planned = static_cast<std::ptrdiff_t>(trained);
  const auto frozen =
      bucket_params_of({params.begin() + planned, params.end()});
  // Nothing waits for a bucket to fill: one for each dtype, group and unit.
  BucketPlanOptions whole = options;
  for (size_t i = trained; i < params.size(); ++i)
    whole.ranks = std::lcm(whole.ranks, params[i].group.ranks->size());
  whole.capacity_bytes = whole.first_bucket_bytes = whole.last_bucket_bytes =
      std::numeric_limits<int64_t>::max();
  BucketPlan rest = plan_buckets(
      frozen,
      initial_order(BucketOrder::kReverse, static_cast<int>(frozen.size())),
      whole);
  for (PlannedBucket& bucket : rest.buckets) {
    for (BucketSlot& slot : bucket.slots)
      slot.param += static_cast<int>(trained);
    plan.buckets.push_back(std::move(bucket));
  }
  return plan;
}

WeightMemory::WeightMemory(
    const BucketPlan& plan,
    std::vector<Param> params,
    FlatWeights place,
    Sharding sharding)
    : params_(std::move(params)), place_(place), sharding_(sharding) {
  const torch::NoGradGuard no_grad;
  weights_.resize(place_ == FlatWeights::kMove ? params_.size() : 0);
  std::map<std::pair<std::string, int>, Flat> memory;
  for (const PlannedBucket& planned : plan.buckets)
    memory[{planned.dtype, planned.unit}].numel += planned.numel;
  for (const PlannedBucket& planned : plan.buckets) {
    FlatSegment segment;
    segment.slots = planned.slots;
    segment.unit = planned.unit;
    segment.group = params_[static_cast<size_t>(planned.slots[0].param)].group;
    segment.owned = sharding_ == Sharding::kNone
                        ? FlatRange{.numel = planned.numel}
                        : owned_range(
                              planned.numel,
                              segment.group.ranks->rank(),
                              segment.group.ranks->size());
    if (place_ == FlatWeights::kMove)
      add_memory(segment, planned, memory[{planned.dtype, planned.unit}]);
    segments_.push_back(std::move(segment));
  }
}

void WeightMemory::add_memory(
    FlatSegment& segment,
    const PlannedBucket& planned,
    Flat& flat) {
  const bool is_divided = sharding_ == Sharding::kParameters;
  if (!flat.weight.defined()) {
    const auto first = static_cast<size_t>(planned.slots.front().param);
    const torch::TensorOptions options = params_[first].tensor.options();
    flat.weight = is_divided ? ops::make_releasable(flat.numel, options).zero_()
                             : torch::zeros({flat.numel}, options);
    flats_.push_back(flat.weight);
  }
  segment.weight = flat.weight.narrow(0, flat.used, planned.numel);
  flat.used += planned.numel;
  for (const BucketSlot& slot : planned.slots) {
    const auto i = static_cast<size_t>(slot.param);
    if (params_[i].has_sparse_gradient)
      continue;
    weights_[i] = segment.weight.narrow(0, slot.offset_numel, slot.numel)
                      .view(params_[i].tensor.sizes());
    weights_[i].copy_(params_[i].tensor.detach());
    params_[i].tensor.set_data(weights_[i]);
  }
  if (!is_divided)
    return;
  segment.weight_shard =
      segment.weight.narrow(0, segment.owned.begin, segment.owned.numel)
          .clone();
  // All its buckets have their values now.
  if (flat.used == flat.numel)
    ops::release(flat.weight);
}

bool WeightMemory::is_replaced(size_t param) const {
  return !is_same_memory(params_[param].tensor, weights_[param]) &&
         !params_[param].is_replaced_by_copy();
}

bool WeightMemory::are_replaced() const {
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (is_replaced(i))
      return true;
  }
  return false;
}

bool WeightMemory::take_back() {
  const torch::NoGradGuard no_grad;
  bool is_any_new = false;
  for (size_t i = 0; i < weights_.size(); ++i) {
    torch::Tensor& param = params_[i].tensor;
    if (!is_replaced(i))
      continue;
    if (sharding_ == Sharding::kParameters) {
      throw ConfigError(fmt::format(
          "[data_parallel] '{}' was given other memory, but with sharding = "
          "parameters no rank holds it whole: load weights while a "
          "brigade::FullWeights lives",
          params_[i].name));
    }
    if (param.sizes() != weights_[i].sizes() ||
        param.scalar_type() != weights_[i].scalar_type()) {
      throw ConfigError(fmt::format(
          "[data_parallel] '{}' has another shape or dtype than when it was "
          "wrapped; load weights of the same module, or wrap again",
          params_[i].name));
    }
    weights_[i].copy_(param.detach());
    param.set_data(weights_[i]);
    is_any_new = is_any_new || param.requires_grad();
  }
  return is_any_new;
}

int64_t WeightMemory::version() const {
  int64_t sum = 0;
  if (sharding_ == Sharding::kParameters) {
    for (const FlatSegment& segment : segments_)
      sum += static_cast<int64_t>(segment.weight_shard._version());
    return sum;
  }
  for (const torch::Tensor& flat : flats_)
    sum += static_cast<int64_t>(flat._version());
  return sum;
}

void WeightMemory::regroup(
    const CommunicatorPtr& from,
    const CommunicatorPtr& to) {
  for (Param& param : params_) {
    if (param.group.ranks == from)
      param.group.ranks = to;
  }
  for (FlatSegment& segment : segments_) {
    if (segment.group.ranks == from)
      segment.group.ranks = to;
  }
}

}  // namespace brigade
