#include "brigade/param/param_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/ops/erasable_memory.h"
#include "brigade/ops/releasable_memory.h"

namespace brigade {
namespace {

// The memory of all buckets of one dtype and unit, dealt out bucket by bucket.
struct Flat {
  int64_t numel = 0;
  int64_t used = 0;
  torch::Tensor memory;
  torch::Tensor deal_out(int64_t part) {
    return memory.narrow(0, std::exchange(used, used + part), part);
  }
};
using Flats = std::map<std::pair<std::string, int>, Flat>;

Flats count_flats(std::span<const PlannedBucket> buckets) {
  Flats flats;
  for (const PlannedBucket& bucket : buckets)
    flats[{bucket.dtype, bucket.unit}].numel += bucket.numel;
  return flats;
}

int64_t sum_of_versions(const std::vector<torch::Tensor>& tensors) {
  int64_t sum = 0;
  for (const torch::Tensor& tensor : tensors)
    sum += static_cast<int64_t>(tensor._version());
  return sum;
}

}  // namespace

torch::Tensor FlatSegment::owned_weight() const {
  return weight_shard.defined() ? weight_shard
                                : weight.narrow(0, owned.begin, owned.numel);
}

torch::Tensor FlatSegment::owned_main_grad() const {
  return grad_shard.defined() ? grad_shard
                              : main_grad.narrow(0, owned.begin, owned.numel);
}

std::optional<int64_t> FlatSegment::owned_offset(
    const torch::Tensor& view) const {
  const torch::Tensor& memory = weight_shard.defined() ? weight_shard : weight;
  if (!memory.defined() || !view.is_alias_of(memory))
    return std::nullopt;
  const int64_t begin = weight_shard.defined() ? 0 : owned.begin;
  const int64_t offset =
      view.storage_offset() - memory.storage_offset() - begin;
  if (offset < 0 || offset + view.numel() > owned.numel)
    return std::nullopt;
  return offset;
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

std::vector<BucketParam> bucket_params_of(
    std::span<const Param> params,
    Sharding sharding) {
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
         .unit = sharding == Sharding::kParameters ? param.unit : 0,
         .group = group_of[result.size()]});
  }
  return result;
}

BucketPlan with_frozen(
    BucketPlan plan,
    std::span<const Param> params,
    Sharding sharding,
    const BucketPlanOptions& options) {
  size_t trained = 0;
  for (const PlannedBucket& bucket : plan.buckets)
    trained += bucket.slots.size();
  const auto frozen = bucket_params_of(params.subspan(trained), sharding);
  // Frozen parameters have no gradients to wait for: one bucket for each dtype,
  // group and unit.
  BucketPlanOptions whole = options;
  for (size_t i = trained; i < params.size(); ++i)
    whole.ranks = std::lcm(whole.ranks, params[i].group->size());
  whole.capacity_bytes = whole.first_bucket_bytes = whole.last_bucket_bytes =
      std::numeric_limits<int64_t>::max();
  BucketPlan rest = plan_buckets(
      frozen,
      initial_order(BucketOrder::kReverse, static_cast<int>(frozen.size())),
      whole);
  for (PlannedBucket& bucket : rest.buckets) {
    for (RunPart& slot : bucket.slots)
      slot.param += static_cast<int>(trained);
    plan.buckets.push_back(std::move(bucket));
  }
  return plan;
}

ParamMemory::ParamMemory(
    const BucketPlan& plan,
    std::span<Param> params,
    FlatWeights place,
    Sharding sharding)
    : params_(params),
      trained_(static_cast<size_t>(std::count_if(
          params_.begin(),
          params_.end(),
          [](const Param& param) { return param.tensor.requires_grad(); }))),
      place_(place),
      sharding_(sharding) {
  for (Param& param : params_) {  // of another memory
    param.flat_weight.reset();
    param.main_grad.reset();
    param.owned = {};
  }
  lay_out(plan);
}

void ParamMemory::move_to(const BucketPlan& plan) {
  *flat_memory_ = {.is_current = false};
  lay_out(plan);
}

void ParamMemory::lay_out(const BucketPlan& plan) {
  const torch::NoGradGuard no_grad;
  add_segments(plan);
  if (place_ == FlatWeights::kMove)
    add_weights(plan);
  add_gradients(plan);
  note_owned_parts();
  flat_memory_ = std::make_shared<FlatMemory>(FlatMemory{.params = params_});
  ++layout_version_;
}

void ParamMemory::add_segments(const BucketPlan& plan) {
  segments_.clear();
  trained_segments_ = 0;
  for (const PlannedBucket& planned : plan.buckets) {
    const auto first = static_cast<size_t>(planned.slots.front().param);
    trained_segments_ += first < trained_ ? 1 : 0;
    FlatSegment& segment = segments_.emplace_back();
    segment.slots = planned.slots;
    segment.first_param = &params_[first];
    const CommunicatorPtr& ranks = params_[first].group;
    segment.owned =
        sharding_ == Sharding::kNone
            ? FlatRange{.numel = planned.numel}
            : owned_range(planned.numel, ranks->rank(), ranks->size());
  }
}

void ParamMemory::add_weights(const BucketPlan& plan) {
  const bool is_divided = sharding_ == Sharding::kParameters;
  flat_weights_.clear();
  Flats flats = count_flats(plan.buckets);
  for (size_t b = 0; b < segments_.size(); ++b) {
    const PlannedBucket& planned = plan.buckets[b];
    FlatSegment& segment = segments_[b];
    Flat& flat = flats[{planned.dtype, planned.unit}];
    if (!flat.memory.defined()) {
      const torch::TensorOptions options =
          segment.first_param->tensor.options();
      flat.memory = is_divided
                        ? ops::make_releasable(flat.numel, options).zero_()
                        : torch::zeros({flat.numel}, options);
      flat_weights_.push_back(flat.memory);
    }
    segment.weight = flat.deal_out(planned.numel);
    for (const RunPart& slot : planned.slots) {
      Param& param = params_[static_cast<size_t>(slot.param)];
      if (param.has_sparse_gradient)
        continue;
      param.flat_weight = segment.weight.narrow(0, slot.offset, slot.numel)
                              .view(param.tensor.sizes());
      param.flat_weight.copy_(param.tensor.detach());
      param.tensor.set_data(param.flat_weight);
    }
    if (!is_divided)
      continue;
    segment.weight_shard =
        segment.weight.narrow(0, segment.owned.begin, segment.owned.numel)
            .clone();
    // All buckets of this memory have their values now.
    if (flat.used == flat.numel)
      ops::release(flat.memory);
  }
}

void ParamMemory::add_gradients(const BucketPlan& plan) {
  flat_grads_.clear();
  Flats flats = count_flats(std::span(plan.buckets).first(trained_segments_));
  for (size_t b = 0; b < trained_segments_; ++b) {
    const PlannedBucket& planned = plan.buckets[b];
    FlatSegment& segment = segments_[b];
    Flat& flat = flats[{planned.dtype, planned.unit}];
    if (!flat.memory.defined()) {
      const torch::Tensor& tensor = segment.first_param->tensor;
      const auto options =
          tensor.options().dtype(main_grad_dtype(tensor.scalar_type()));
      flat.memory = divides_gradients(sharding_)
                        ? ops::make_erasable(flat.numel, options)
                        : torch::zeros({flat.numel}, options);
      flat_grads_.push_back(flat.memory);
    }
    segment.main_grad = flat.deal_out(planned.numel);
    if (divides_gradients(sharding_))
      segment.grad_shard =
          torch::zeros({segment.owned.numel}, segment.main_grad.options());
    for (const RunPart& slot : planned.slots) {
      Param& param = params_[static_cast<size_t>(slot.param)];
      if (param.has_sparse_gradient) {
        param.main_grad = segment.main_grad.narrow(0, slot.offset, 0);
        continue;
      }
      const auto main_grad =
          segment.main_grad.narrow(0, slot.offset, slot.numel)
              .view(param.tensor.sizes());
      if (layout_version_ > 0)  // the same contents as before
        main_grad.copy_(param.main_grad);
      param.main_grad = main_grad;
    }
  }
}

void ParamMemory::note_owned_parts() {
  for (size_t s = 0; s < trained_segments_; ++s) {
    const FlatRange& owned = segments_[s].owned;
    for (const RunPart& slot : segments_[s].slots) {
      const int64_t begin = std::max(owned.begin, slot.offset);
      const int64_t end =
          std::min(owned.begin + owned.numel, slot.offset + slot.numel);
      RunPart& part = params_[static_cast<size_t>(slot.param)].owned;
      part = {.param = slot.param, .run = s};
      if (begin < end) {
        part.begin = begin - slot.offset;
        part.offset = begin - owned.begin;
        part.numel = end - begin;
      }
    }
  }
}

std::optional<size_t> ParamMemory::segment_of(
    const torch::Tensor& owned) const {
  for (size_t s = 0; s < segments().size(); ++s) {
    if (segments()[s].owned_offset(owned))
      return s;
  }
  return std::nullopt;
}

torch::Tensor ParamMemory::main_grad_of(const torch::Tensor& owned) const {
  const auto index = segment_of(owned);
  if (!index)
    return {};
  const FlatSegment& segment = segments()[*index];
  return segment.owned_main_grad().narrow(
      0, *segment.owned_offset(owned), owned.numel());
}

bool ParamMemory::is_replaced(const Param& param) {
  return param.flat_weight.defined() &&
         !is_same_memory(param.tensor, param.flat_weight) &&
         !param.is_replaced_by_copy();
}

bool ParamMemory::are_replaced() const {
  return std::any_of(params_.begin(), params_.end(), is_replaced);
}

void ParamMemory::take_back() {
  const torch::NoGradGuard no_grad;
  bool is_any_trained_new = false;
  for (Param& param : params_) {
    if (!is_replaced(param))
      continue;
    if (sharding_ == Sharding::kParameters) {
      throw UsageError(fmt::format(
          "[data_parallel] '{}' was given other memory, but with sharding = "
          "parameters no rank holds it whole: load weights while a "
          "brigade::FullWeights lives",
          param.name));
    }
    if (param.tensor.sizes() != param.flat_weight.sizes() ||
        param.tensor.scalar_type() != param.flat_weight.scalar_type()) {
      throw UsageError(fmt::format(
          "[data_parallel] '{}' has another shape or dtype than when it was "
          "wrapped; load weights of the same module, or wrap again",
          param.name));
    }
    param.flat_weight.copy_(param.tensor.detach());
    param.tensor.set_data(param.flat_weight);
    is_any_trained_new = is_any_trained_new || param.tensor.requires_grad();
  }
  if (is_any_trained_new)
    ++flat_memory_->weights_version;
}

int64_t ParamMemory::version_of_weights() const {
  if (sharding_ != Sharding::kParameters)
    return sum_of_versions(flat_weights_);
  int64_t sum = 0;
  for (const FlatSegment& segment : segments_)
    sum += static_cast<int64_t>(segment.weight_shard._version());
  return sum;
}

void ParamMemory::zero_main_grads() {
  if (!divides_gradients(sharding_)) {
    for (const torch::Tensor& flat : flat_grads_)
      flat.zero_();
    return;
  }
  for (const torch::Tensor& flat : flat_grads_)
    ops::erase(flat);
  for (const FlatSegment& segment : segments())
    segment.grad_shard.zero_();
}

void ParamMemory::take_reduced(size_t index) {
  const torch::NoGradGuard no_grad;
  const FlatSegment& segment = segments_[index];
  const FlatRange& owned = segment.owned;
  if (divides_gradients(sharding_)) {
    segment.grad_shard.add_(
        segment.main_grad.narrow(0, owned.begin, owned.numel));
    ops::erase(segment.main_grad);
  } else if (sharding_ == Sharding::kOptimizer) {
    const int64_t end = owned.begin + owned.numel;
    segment.main_grad.narrow(0, 0, owned.begin).zero_();
    segment.main_grad.narrow(0, end, segment.main_grad.numel() - end).zero_();
  }
}

int64_t ParamMemory::version_of_gradients() const {
  return sum_of_versions(flat_grads_);
}

}  // namespace brigade
