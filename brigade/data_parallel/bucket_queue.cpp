#include "brigade/data_parallel/bucket_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/metrics/clock.h"

namespace brigade {

Bucket::Bucket(BucketView view)
    : view_(std::move(view)),
      params_(view_.names.size()),
      bytes_(static_cast<int64_t>(view_.main_grad.nbytes())),
      pending_(params_) {
  timing_.index = view_.index;
  timing_.bytes = bytes_;
}

std::string Bucket::describe() const {
  const auto& names = view_.names;
  return fmt::format(
      "bucket {} of {} ({}{}{}, {} bytes)",
      view_.index,
      view_.buckets,
      names.front(),
      names.size() > 1 ? " ... " : "",
      names.size() > 1 ? names.back() : "",
      bytes_);
}

void Bucket::mark_ready() {
  BRIGADE_ASSERT(
      state_ == BucketState::kFilling && pending_ > 0, "{}", describe());
  writers_.add_current_stream(view_.main_grad.device());
  if (--pending_ == 0) {
    state_ = BucketState::kFull;
    timing_.ready_ns = steady_now_ns();
  }
}

void Bucket::launch(const BucketHook& hook, Communicator& communicator) {
  BRIGADE_ASSERT(state_ == BucketState::kFull, "{}", describe());
  launch_as_is(hook, communicator);
}

void Bucket::launch_as_is(const BucketHook& hook, Communicator& communicator) {
  timing_.launched_ns = steady_now_ns();
  writers_.wait();
  if (is_asynchronous(view_.main_grad.device()))
    device_times_.ready = StreamMark::timed(view_.main_grad.device());
  view_.reduced_bytes.reset();
  try {
    work_ = hook(view_, communicator);
  } catch (const Error& error) {
    rethrow_from("[data_parallel] " + describe(), error);
  } catch (const std::exception& error) {
    rethrow_from(
        fmt::format("[data_parallel] the hook of {} failed", describe()),
        error);
  }
  if (work_ == nullptr) {
    throw UsageError(fmt::format(
        "[data_parallel] the hook of {} returned no Work; return what the "
        "communicator's collective returned, or make_completed_work()",
        describe()));
  }
  state_ = BucketState::kReducing;
}

void Bucket::wait() {
  if (state_ != BucketState::kReducing)
    return;
  const torch::Device device = view_.main_grad.device();
  const bool has_streams = is_asynchronous(device);
  timing_.wait_begin_ns = steady_now_ns();
  if (has_streams)
    device_times_.wait_begin = StreamMark::timed(device);
  try {
    work_->wait();
  } catch (const CommError& error) {
    rethrow_from("[data_parallel] " + describe(), error);
  }
  timing_.wait_end_ns = steady_now_ns();
  timing_.finished_ns = work_->finished_ns();
  timing_.bytes =
      work_->reduced_bytes().value_or(view_.reduced_bytes.value_or(bytes_));
  if (has_streams) {
    device_times_.wait_end = StreamMark::timed(device);
    device_times_.work = work_;
  }
  work_.reset();
  state_ = BucketState::kReduced;
}

void Bucket::note_times(BucketTiming& timing) const {
  if (device_times_.work == nullptr)
    return;
  timing.ready_ns = timing.launched_ns = device_times_.ready.reached_ns();
  timing.finished_ns = device_times_.work->finished_ns();
  timing.wait_begin_ns = device_times_.wait_begin.reached_ns();
  timing.wait_end_ns = device_times_.wait_end.reached_ns();
}

bool Bucket::is_reduced() {
  return state_ == BucketState::kReduced ||
         (state_ == BucketState::kReducing && work_->is_completed());
}

void Bucket::abandon() {
  if (state_ != BucketState::kReducing)
    return;
  try {
    work_->wait();
  } catch (const std::exception&) {
    // It was reported to the caller that waited; its memory is written again.
  }
  work_.reset();
  state_ = BucketState::kReduced;
}

void Bucket::reset() {
  BRIGADE_ASSERT(
      state_ != BucketState::kReducing,
      "{} reset while it is reduced",
      describe());
  pending_ = params_;
  writers_.clear();
  state_ = BucketState::kFilling;
}

BucketQueue::BucketQueue(
    const BucketPlan& plan,
    ParamMemory& memory,
    const GradSyncOptions& options)
    : memory_(&memory), hook_(options.hook) {
  // Gradients of 16-bit weights are divided when they are handed over.
  const bool is_divided_first = options.reduction == Reduction::kMean &&
                                options.handover == GradHandover::kParamDtype;
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
      const Param& param = memory.params()[static_cast<size_t>(slot.param)];
      view.names.push_back(param.name);
      view.params.push_back(param.tensor);
      view.grads.push_back(param.main_grad);
      // A bucket's weights are of one dtype.
      view.is_averaged = is_divided_first && !is_16_bit(param.dtype);
    }
    buckets_.emplace_back(std::move(view));
  }
}

void BucketQueue::mark_ready(int param) {
  buckets_[memory_->params()[static_cast<size_t>(param)].owned.run]
      .mark_ready();
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
