#include "brigade/data_parallel/bucket.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/metrics/clock.h"

namespace brigade {

Bucket::Bucket(PlannedBucket plan, BucketView view)
    : plan_(std::move(plan)),
      view_(std::move(view)),
      pending_(plan_.slots.size()) {
  timing_.index = view_.index;
  timing_.bytes = plan_.bytes();
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
      plan_.bytes());
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
  try {
    work_ = hook(view_, communicator);
  } catch (const CommError& error) {
    throw CommError(
        fmt::format("[data_parallel] {}: {}", describe(), error.what()));
  } catch (const std::exception& error) {
    throw Error(
        ExitCode::kUnexpected,
        fmt::format(
            "[data_parallel] the hook of {} failed: {}",
            describe(),
            error.what()));
  }
  if (work_ == nullptr) {
    throw Error(
        ExitCode::kUnexpected,
        fmt::format(
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
    throw CommError(
        fmt::format("[data_parallel] {}: {}", describe(), error.what()));
  }
  timing_.wait_end_ns = steady_now_ns();
  timing_.finished_ns = work_->finished_ns();
  timing_.bytes = work_->reduced_bytes().value_or(plan_.bytes());
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
    // Reported to whoever waited for it; its memory is written again.
  }
  work_.reset();
  state_ = BucketState::kReduced;
}

void Bucket::reset() {
  BRIGADE_ASSERT(
      state_ != BucketState::kReducing,
      "{} reset while it is reduced",
      describe());
  pending_ = plan_.slots.size();
  writers_.clear();
  state_ = BucketState::kFilling;
}

}  // namespace brigade
