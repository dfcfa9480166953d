#include "brigade/data_parallel/grad_buffer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "brigade/ops/erasable_memory.h"

namespace brigade {
namespace {

// The gradients of all buckets of one dtype and unit, dealt out bucket by
// bucket.
struct FlatGrads {
  int64_t numel = 0;
  int64_t used = 0;
  torch::Tensor grads;
};

int64_t numel_of(const FlatSegment& segment) {
  return segment.weight.defined() ? segment.weight.numel()
                                  : segment.owned.numel;
}

}  // namespace

GradBuffer::GradBuffer(
    const WeightMemory& weights,
    size_t trained,
    Sharding sharding)
    : sharding_(sharding), main_grads_(trained) {
  lay_out(weights);
}

void GradBuffer::lay_out(const WeightMemory& weights) {
  const torch::NoGradGuard no_grad;
  const auto old_grads = std::exchange(
      main_grads_, std::vector<torch::Tensor>(main_grads_.size()));
  segments_.clear();
  flat_grads_.clear();
  const auto& params = weights.params();
  const auto first_of = [&](const FlatSegment& segment) -> const Param& {
    return params[static_cast<size_t>(segment.slots.front().param)];
  };
  std::map<std::pair<torch::ScalarType, int>, FlatGrads> memory;
  for (const FlatSegment& range : weights.segments()) {
    if (static_cast<size_t>(range.slots.front().param) < main_grads_.size())
      memory[{first_of(range).tensor.scalar_type(), range.unit}].numel +=
          numel_of(range);
  }
  for (const FlatSegment& range : weights.segments()) {
    if (static_cast<size_t>(range.slots.front().param) >= main_grads_.size())
      continue;
    const torch::Tensor& first = first_of(range).tensor;
    FlatGrads& flat = memory[{first.scalar_type(), range.unit}];
    if (!flat.grads.defined()) {
      const auto options =
          first.options().dtype(main_grad_dtype(first.scalar_type()));
      flat.grads = divides_gradients(sharding_)
                       ? ops::make_erasable(flat.numel, options)
                       : torch::zeros({flat.numel}, options);
      flat_grads_.push_back(flat.grads);
    }
    FlatSegment segment = range;
    segment.main_grad = flat.grads.narrow(0, flat.used, numel_of(range));
    flat.used += numel_of(range);
    if (divides_gradients(sharding_))
      segment.grad_shard =
          torch::zeros({segment.owned.numel}, segment.main_grad.options());
    for (const BucketSlot& slot : segment.slots) {
      const auto i = static_cast<size_t>(slot.param);
      if (params[i].has_sparse_gradient) {
        main_grads_[i] = segment.main_grad.narrow(0, slot.offset_numel, 0);
        continue;
      }
      main_grads_[i] =
          segment.main_grad.narrow(0, slot.offset_numel, slot.numel)
              .view(params[i].tensor.sizes());
      if (old_grads[i].defined())
        main_grads_[i].copy_(old_grads[i]);
    }
    segments_.push_back(std::move(segment));
  }
  if (flat_memory_)
    *flat_memory_ = {.is_current = false};
  flat_memory_ = std::make_shared<FlatMemory>();
  ++layout_version_;
}

void GradBuffer::move_to(const WeightMemory& weights) {
  lay_out(weights);
}

void GradBuffer::regroup(
    const CommunicatorPtr& from,
    const CommunicatorPtr& to) {
  for (FlatSegment& segment : segments_) {
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
  for (const FlatSegment& segment : segments_)
    segment.grad_shard.zero_();
}

std::vector<RunPart> GradBuffer::owned_parts() const {
  std::vector<RunPart> parts(main_grads_.size());
  for (size_t s = 0; s < segments_.size(); ++s) {
    const FlatRange& owned = segments_[s].owned;
    for (const BucketSlot& slot : segments_[s].slots) {
      const int64_t begin = std::max(owned.begin, slot.offset_numel);
      const int64_t end =
          std::min(owned.begin + owned.numel, slot.offset_numel + slot.numel);
      RunPart& part = parts[static_cast<size_t>(slot.param)];
      part = {.param = slot.param, .run = s};
      if (begin < end) {
        part.begin = begin - slot.offset_numel;
        part.offset = begin - owned.begin;
        part.numel = end - begin;
      }
    }
  }
  return parts;
}

void GradBuffer::take_reduced(size_t index) {
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

int64_t GradBuffer::flat_version() const {
  int64_t sum = 0;
  for (const torch::Tensor& flat : flat_grads_)
    sum += static_cast<int64_t>(flat._version());
  return sum;
}

}  // namespace brigade
