#include "brigade/data_parallel/bucket_queue.h"

#include <utility>

namespace brigade {

BucketQueue::BucketQueue(
    const BucketPlan& plan,
    const std::vector<NamedParam>& params,
    const GradBuffer& buffer,
    BucketHook hook,
    Communicator& communicator)
    : bucket_of_(params.size()),
      hook_(std::move(hook)),
      communicator_(&communicator) {
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const PlannedBucket& planned = plan.buckets[b];
    BucketView view;
    view.index = static_cast<int>(b);
    view.buckets = static_cast<int>(plan.buckets.size());
    view.main_grad = buffer.segments()[b].main_grad;
    view.sparse_row_numel = planned.sparse_row_numel;
    for (const BucketSlot& slot : planned.slots) {
      const auto i = static_cast<size_t>(slot.param);
      bucket_of_[i] = b;
      view.names.push_back(params[i].name);
      view.params.push_back(params[i].tensor);
      view.grads.push_back(buffer.main_grad(slot.param));
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
    buckets_[next_to_launch_].launch(hook_, *communicator_);
    ++next_to_launch_;
  }
}

void BucketQueue::launch_all() {
  for (Bucket& bucket : buckets_)
    bucket.launch_as_is(hook_, *communicator_);
}

std::vector<BucketTiming> BucketQueue::wait() {
  std::vector<BucketTiming> timings;
  for (Bucket& bucket : buckets_) {
    bucket.wait();
    timings.push_back(bucket.timing());
  }
  return timings;
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
