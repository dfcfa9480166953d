#include "brigade/sharding/gathered_weights.h"

#include <algorithm>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"

namespace brigade {

GatheredWeights::GatheredWeights(const ParamMemory& memory, GatherMode mode)
    : memory_(&memory), mode_(mode), works_(memory.segments().size()) {
  note_current();
  if (sharding() == Sharding::kParameters)
    units_ = std::make_unique<ShardedWeights>(memory, [this](size_t segment) {
      if (is_late(segment))
        finish_late();
    });
}

GatheredWeights::~GatheredWeights() {
  for (const WorkPtr& work : works_) {
    try {
      if (work)
        work->wait();
    } catch (const std::exception&) {
      // A lost peer is reported to the caller that waits.
    }
  }
}

void GatheredWeights::after_step(LateStep late) {
  need_all();
  for (const int param : late.params) {
    late_.resize(works_.size());
    late_[memory_->params()[static_cast<size_t>(param)].owned.run] = true;
  }
  finish_ = std::move(late.finish);
  if (finish_ && (mode_ == GatherMode::kInPlace || late_.empty()))
    finish_late();
  if (sharding() == Sharding::kNone)
    return;
  if (units_) {
    if (units_->is_held()) {
      throw UsageError(
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
  for (size_t b = works_.size(); b-- > 0;) {
    if (!is_late(b))
      launch(b);
  }
  note_current();
  if (mode_ == GatherMode::kInPlace)
    need_all();
}

void GatheredWeights::launch(size_t segment) {
  const torch::NoGradGuard no_grad;
  const FlatSegment& of = memory_->segments()[segment];
  works_[segment] =
      of.first_param->group->all_gather(of.weight, of.owned_weight());
}

void GatheredWeights::finish_late() {
  const std::vector<bool> late = std::exchange(late_, {});
  if (const auto finish = std::exchange(finish_, {}))
    finish();
  const bool is_gathered_by_bucket =
      sharding() != Sharding::kNone && units_ == nullptr;
  for (size_t b = late.size(); b-- > 0;) {
    if (late[b] && is_gathered_by_bucket)
      launch(b);
  }
  note_current();
}

bool GatheredWeights::are_under_way() const {
  const auto is_there = [](const WorkPtr& work) { return work != nullptr; };
  return !late_.empty() || std::any_of(works_.begin(), works_.end(), is_there);
}

void GatheredWeights::need_all() {
  if (!late_.empty())
    finish_late();
  for (size_t b = works_.size(); b-- > 0;)
    need_segment(b);
}

void GatheredWeights::need_segment(size_t segment) {
  BRIGADE_ASSERT(
      segment < works_.size(), "segment {} of {}", segment, works_.size());
  if (is_late(segment))
    finish_late();
  if (const WorkPtr work = std::exchange(works_[segment], nullptr))
    work->wait();
}

void GatheredWeights::use(int unit) {
  if (units_ != nullptr) {
    units_->use(unit);
    return;
  }
  if (!are_under_way())
    return;
  bool is_known = false;
  for (const Param& param : memory_->params()) {
    is_known = is_known || param.unit == unit;
    // Frozen parameters are not gathered.
    if (param.unit == unit && param.main_grad.defined())
      need(param);
  }
  if (!is_known)
    need_all();
}

void GatheredWeights::hold(int unit) {
  if (units_ != nullptr)
    units_->hold(unit);
  else
    use(unit);
}

void GatheredWeights::let_go(int unit) {
  if (units_ != nullptr)
    units_->let_go(unit);
}

void GatheredWeights::add_to(const Param& param, const torch::Tensor& change) {
  if (units_ != nullptr)
    units_->add_to(param.name, change);
  else
    param.tensor.detach().add_(change);
}

void GatheredWeights::end_pass() {
  if (units_ != nullptr)
    units_->end_pass();
}

void GatheredWeights::expect_pass() {
  if (units_ != nullptr)
    units_->expect_pass();
}

void GatheredWeights::abandon() {
  if (units_ != nullptr)
    units_->abandon();
}

void GatheredWeights::throw_if_failed() {
  if (units_ != nullptr)
    units_->throw_if_failed();
}

void GatheredWeights::throw_if_stale() const {
  if (sharding() == Sharding::kNone ||
      gathered_version_ == memory_->version_of_weights())
    return;
  throw UsageError(
      "[data_parallel] an optimizer stepped this rank's part of the weights, "
      "and the other ranks do not have it: call gather_weights() after the "
      "optimizer's step()");
}

}  // namespace brigade
