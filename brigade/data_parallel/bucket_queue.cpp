#include "brigade/data_parallel/bucket_queue.h"

#include <algorithm>
#include <utility>

namespace brigade {

BucketQueue::BucketQueue(
    const BucketPlan& plan,
    const std::vector<Param>& params,
    ParamMemory& memory,
    const Reducer& reducer)
    : memory_(&memory), bucket_of_(params.size()), hook_(reducer.hook) {
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const PlannedBucket& planned = plan.buckets[b];
    BucketView view;
    view.index = static_cast<int>(b);
    view.buckets = static_cast<int>(plan.buckets.size());
    const FlatSegment& segment = memory.segments()[b];
    view.main_grad = segment.main_grad;
    view.owned =
        segment.main_grad.narrow(0, segment.owned.begin, segment.owned.numel);
    view.sparse_row_numel = planned.sparse_row_numel;
    for (const RunPart& slot : planned.slots) {
      const auto i = static_cast<size_t>(slot.param);
      bucket_of_[i] = b;
      view.names.push_back(params[i].name);
      view.params.push_back(params[i].tensor);
      view.grads.push_back(memory.main_grad(slot.param));
      view.are_averaged.push_back(reducer.are_averaged[i]);
    }
    buckets_.emplace_back(planned, std::move(view));
  }
}

void BucketQueue::mark_ready(int param) {
  buckets_[bucket_of_[static_cast<size_t>(param)]].mark_ready();
  // A full bucket behind one that still fills must wait, or ranks whose
  // backwards differ would pair different buckets.
  while (next_to_launch_ < buckets_.size() &&
         buckets_[next_to_launch_].state() == BucketState::kFull) {
    buckets_[next_to_launch_].launch(hook_, group_of(next_to_launch_));
    if (divides_gradients(memory_->sharding()) && next_to_launch_ >= kWindow)
      settle(next_to_launch_ - kWindow);
    ++next_to_launch_;
  }
}

void BucketQueue::launch_rest() {
  for (; next_to_launch_ < buckets_.size(); ++next_to_launch_)
    buckets_[next_to_launch_].launch_as_is(hook_, group_of(next_to_launch_));
}

bool BucketQueue::is_reduced(size_t bucket) {
  return buckets_[bucket].is_reduced();
}

void BucketQueue::settle(size_t bucket) {
  if (buckets_[bucket].state() != BucketState::kReducing)
    return;
  buckets_[bucket].wait();
  memory_->take_reduced(bucket);
}

std::vector<BucketTiming> BucketQueue::wait() {
  std::vector<BucketTiming> timings;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    settle(b);
    timings.push_back(buckets_[b].timing());
  }
  return timings;
}

void BucketQueue::note_times(std::vector<BucketTiming>& timings) const {
  for (size_t b = 0; b < std::min(timings.size(), buckets_.size()); ++b)
    buckets_[b].note_times(timings[b]);
}

void BucketQueue::abandon() {
  for (Bucket& bucket : buckets_)
    bucket.abandon();
}

void BucketQueue::reset() {
  for (Bucket& bucket : buckets_)
    bucket.reset();
  next_to_launch_ = 0;
}

}  // namespace brigade
