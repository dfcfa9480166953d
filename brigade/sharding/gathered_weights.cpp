#include "brigade/sharding/gathered_weights.h"

#include <algorithm>
#include <utility>

#include "brigade/base/error.h"

namespace brigade {

GatheredWeights::GatheredWeights(const ParamMemory& memory, GatherMode mode)
    : memory_(&memory), mode_(mode), works_(memory.segments().size()) {
  note_current();
  if (sharding() == Sharding::kParameters)
    units_ = std::make_unique<ShardedWeights>(memory);
}

GatheredWeights::~GatheredWeights() {
  for (const WorkPtr& work : works_) {
    try {
      if (work)
        work->wait();
    } catch (const std::exception&) {
      // A lost peer: reported to whoever waited.
    }
  }
}

void GatheredWeights::after_step() {
  if (sharding() == Sharding::kNone)
    return;
  if (units_) {
    if (units_->is_held()) {
      throw ConfigError(
          "[data_parallel] an optimizer stepped the weights while a "
          "brigade::FullWeights lived, whose values are older: end it before "
          "the step");
    }
    // Each unit is gathered when it is used.
    units_->end_pass();
    units_->expect_pass();
    note_current();
    return;
  }
  const torch::NoGradGuard no_grad;
  need_all();
  for (size_t b = works_.size(); b-- > 0;) {
    const FlatSegment& segment = memory_->segments()[b];
    works_[b] =
        segment.group.ranks->all_gather(segment.weight, segment.owned_weight());
  }
  note_current();
  if (mode_ == GatherMode::kInPlace)
    need_all();
}

bool GatheredWeights::are_under_way() const {
  return std::any_of(works_.begin(), works_.end(), [](const WorkPtr& work) {
    return work != nullptr;
  });
}

void GatheredWeights::need_all() {
  for (size_t b = works_.size(); b-- > 0;)
    need(b);
}

void GatheredWeights::need(size_t segment) {
  if (const WorkPtr work = std::exchange(works_[segment], nullptr))
    work->wait();
}

void GatheredWeights::throw_if_stale() const {
  if (sharding() == Sharding::kNone ||
      gathered_version_ == memory_->version_of_weights())
    return;
  throw ConfigError(
      "[data_parallel] an optimizer stepped this rank's part of the weights, "
      "and the other ranks do not have it: call gather_weights() after the "
      "optimizer's step()");
}

}  // namespace brigade
