#include "brigade/data_parallel/grad_buffer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/ops/erasable_memory.h"
#include "brigade/ops/releasable_memory.h"

namespace brigade {
namespace {

// The memory of all buckets of one dtype and unit, dealt out bucket by bucket.
struct DtypeMemory {
  int64_t numel = 0;
  int64_t used = 0;
  torch::Tensor main_grad;
  torch::Tensor weight;  // FlatWeights::kMove only

  GradSegment take(const PlannedBucket& bucket) {
    GradSegment segment;
    segment.main_grad = main_grad.narrow(0, used, bucket.numel);
    if (weight.defined())
      segment.weight = weight.narrow(0, used, bucket.numel);
    segment.slots = bucket.slots;
    segment.unit = bucket.unit;
    used += bucket.numel;
    return segment;
  }
};

}  // namespace

torch::Tensor GradSegment::owned_main_grad() const {
  return shard.defined() ? shard
                         : main_grad.narrow(0, owned.begin, owned.numel);
}

torch::Tensor GradSegment::owned_weight() const {
  return weight_shard.defined() ? weight_shard
                                : weight.narrow(0, owned.begin, owned.numel);
}

bool is_16_bit(torch::ScalarType dtype) {
  return dtype == torch::kBFloat16 || dtype == torch::kHalf;
}

torch::ScalarType main_grad_dtype(torch::ScalarType param) {
  return is_16_bit(param) ? torch::kFloat : param;
}

bool is_same_memory(const torch::Tensor& a, const torch::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset();
}

std::vector<BucketParam> bucket_params_of(
    const std::vector<NamedParam>& params) {
  std::vector<BucketParam> result;
  result.reserve(params.size());
  std::vector<int> group_of(params.size());
  const auto groups = groups_of(params);
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const int param : groups[group].params)
      group_of[static_cast<size_t>(param)] = static_cast<int>(group);
  }
  for (const NamedParam& param : params) {
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

GradBuffer::GradBuffer(
    const BucketPlan& plan,
    const std::vector<NamedParam>& params,
    FlatWeights weights,
    Sharding sharding)
    : params_(params), weights_(weights), sharding_(sharding) {
  lay_out(plan);
}

void GradBuffer::lay_out(const BucketPlan& plan) {
  const torch::NoGradGuard no_grad;
  const bool moves_weights = weights_ == FlatWeights::kMove;
  const auto old_grads =
      std::exchange(main_grads_, std::vector<torch::Tensor>(params_.size()));
  param_weights_.assign(moves_weights ? params_.size() : 0, {});
  segments_.clear();
  flat_grads_.clear();
  flat_weights_.clear();
  const bool divides_weights = sharding_ == Sharding::kParameters;
  std::map<std::pair<std::string, int>, DtypeMemory> memory;
  for (const PlannedBucket& planned : plan.buckets)
    memory[{planned.dtype, planned.unit}].numel += planned.numel;
  for (const PlannedBucket& planned : plan.buckets) {
    DtypeMemory& flat = memory[{planned.dtype, planned.unit}];
    if (!flat.main_grad.defined()) {
      const auto first = static_cast<size_t>(planned.slots.front().param);
      const torch::TensorOptions options = params_[first].tensor.options();
      const auto grad_options =
          options.dtype(main_grad_dtype(params_[first].tensor.scalar_type()));
      flat.main_grad = divides_gradients(sharding_)
                           ? ops::make_erasable(flat.numel, grad_options)
                           : torch::zeros({flat.numel}, grad_options);
      if (moves_weights) {
        flat.weight = divides_weights
                          ? ops::make_releasable(flat.numel, options).zero_()
                          : torch::zeros({flat.numel}, options);
        flat_weights_.push_back(flat.weight);
      }
      flat_grads_.push_back(flat.main_grad);
    }
    GradSegment segment = flat.take(planned);
    segment.group = params_[static_cast<size_t>(planned.slots[0].param)].group;
    segment.owned = sharding_ == Sharding::kNone
                        ? OwnedRange{.numel = planned.numel}
                        : owned_range(
                              planned.numel,
                              segment.group.ranks->rank(),
                              segment.group.ranks->size());
    if (divides_gradients(sharding_))
      segment.shard =
          torch::zeros({segment.owned.numel}, segment.main_grad.options());
    for (const BucketSlot& slot : planned.slots) {
      const auto i = static_cast<size_t>(slot.param);
      const auto sizes = params_[i].tensor.sizes();
      const auto view = [&](const torch::Tensor& of) {
        return of.narrow(0, slot.offset_numel, slot.numel).view(sizes);
      };
      if (params_[i].has_sparse_gradient) {
        main_grads_[i] = segment.main_grad.narrow(0, slot.offset_numel, 0);
        continue;
      }
      main_grads_[i] = view(segment.main_grad);
      if (!old_grads.empty())
        main_grads_[i].copy_(old_grads[i]);
      if (moves_weights) {
        param_weights_[i] = view(segment.weight);
        param_weights_[i].copy_(params_[i].tensor.detach());
        params_[i].tensor.set_data(param_weights_[i]);
      }
    }
    if (divides_weights) {
      segment.weight_shard =
          segment.weight.narrow(0, segment.owned.begin, segment.owned.numel)
              .clone();
      // All its buckets have their values now.
      if (flat.used == flat.numel)
        ops::release(flat.weight);
    }
    segments_.push_back(std::move(segment));
  }
  if (flat_memory_)
    *flat_memory_ = {.is_current = false};
  flat_memory_ = std::make_shared<FlatMemory>();
  ++layout_version_;
}

void GradBuffer::move_to(const BucketPlan& plan) {
  lay_out(plan);
}

void GradBuffer::regroup(
    const CommunicatorPtr& from,
    const CommunicatorPtr& to) {
  for (NamedParam& param : params_) {
    if (param.group.ranks == from)
      param.group.ranks = to;
  }
  for (GradSegment& segment : segments_) {
    if (segment.group.ranks == from)
      segment.group.ranks = to;
  }
}

void GradBuffer::zero_main_grads() {
  if (!divides_gradients(sharding_)) {
    for (const torch::Tensor& flat : flat_grads_)
      flat.zero_();
    return;
  }
  for (const torch::Tensor& flat : flat_grads_)
    ops::erase(flat);
  for (const GradSegment& segment : segments_)
    segment.shard.zero_();
}

std::vector<OwnedPart> GradBuffer::owned_parts() const {
  std::vector<OwnedPart> parts(params_.size());
  for (size_t s = 0; s < segments_.size(); ++s) {
    const OwnedRange& owned = segments_[s].owned;
    for (const BucketSlot& slot : segments_[s].slots) {
      const int64_t begin = std::max(owned.begin, slot.offset_numel);
      const int64_t end =
          std::min(owned.begin + owned.numel, slot.offset_numel + slot.numel);
      parts[static_cast<size_t>(slot.param)] =
          begin < end ? OwnedPart{s, begin - slot.offset_numel, end - begin, begin - owned.begin}
                      : OwnedPart{.segment = s};
    }
  }
  return parts;
}

void GradBuffer::take_reduced(size_t index) {
  const torch::NoGradGuard no_grad;
  const GradSegment& segment = segments_[index];
  const OwnedRange& owned = segment.owned;
  if (divides_gradients(sharding_)) {
    segment.shard.add_(segment.main_grad.narrow(0, owned.begin, owned.numel));
    ops::erase(segment.main_grad);
  } else if (sharding_ == Sharding::kOptimizer) {
    const int64_t end = owned.begin + owned.numel;
    segment.main_grad.narrow(0, 0, owned.begin).zero_();
    segment.main_grad.narrow(0, end, segment.main_grad.numel() - end).zero_();
  }
}

void GradBuffer::take_back_weights() {
  const torch::NoGradGuard no_grad;
  bool is_any_new = false;
  for (size_t i = 0; i < param_weights_.size(); ++i) {
    torch::Tensor& param = params_[i].tensor;
    if (is_same_memory(param, param_weights_[i]) ||
        params_[i].is_replaced_by_copy())
      continue;
    if (sharding_ == Sharding::kParameters) {
      throw ConfigError(fmt::format(
          "[data_parallel] '{}' was given other memory, but with sharding = "
          "parameters no rank holds it whole: load weights while a "
          "brigade::FullWeights lives",
          params_[i].name));
    }
    param_weights_[i].copy_(param.detach());
    param.set_data(param_weights_[i]);
    is_any_new = true;
  }
  if (is_any_new)
    ++flat_memory_->weights_version;
}

int64_t GradBuffer::flat_version() const {
  int64_t sum = 0;
  for (const torch::Tensor& flat : flat_grads_)
    sum += static_cast<int64_t>(flat._version());
  return sum;
}

int64_t GradBuffer::weights_version() const {
  int64_t sum = 0;
  if (sharding_ == Sharding::kParameters) {
    for (const GradSegment& segment : segments_)
      sum += static_cast<int64_t>(segment.weight_shard._version());
    return sum;
  }
  for (const torch::Tensor& flat : flat_weights_)
    sum += static_cast<int64_t>(flat._version());
  return sum;
}

}  // namespace brigade
