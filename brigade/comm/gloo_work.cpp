#include "brigade/comm/gloo_work.h"

#include <utility>

#include "brigade/metrics/clock.h"

namespace brigade {

NativeWork::NativeWork(
    C10dWorkPtr work,
    CollectiveRecord record,
    GroupFailuresPtr failures)
    : work_(std::move(work)),
      record_(record),
      failures_(std::move(failures)),
      finished_ns_(std::make_shared<std::atomic<int64_t>>(0)) {
  // On completion's own thread: the exact end, whoever waits and when. And that
  // this rank is there when its peers lose their connections to it.
  work_->getFuture()->addCallback(
      [finished = finished_ns_,
       post_mortem = failures_->post_mortem](c10::ivalue::Future& future) {
        finished->store(steady_now_ns());
        if (future.hasError())
          post_mortem->report({});
      });
}

void NativeWork::wait() {
  try {
    work_->wait();
  } catch (const std::exception& error) {
    failures_->fail(record_, error);
  }
  if (finished_ns_->load() == 0)
    finished_ns_->store(steady_now_ns());
}

bool NativeWork::is_completed() {
  return work_->isCompleted();
}

MessageWork::MessageWork(
    PendingMessages message,
    CollectiveRecord record,
    GroupFailuresPtr failures)
    : message_(std::move(message)),
      record_(record),
      failures_(std::move(failures)) {}

void MessageWork::wait() {
  if (is_completed())
    return;
  try {
    message_.wait();
  } catch (const std::exception& error) {
    failures_->fail(record_, error);
  }
  finished_ns_.store(steady_now_ns());
}

ComposedWork::ComposedWork(
    std::function<void()> last,
    CollectiveRecord record,
    GroupFailuresPtr failures)
    : last_(std::move(last)), record_(record), failures_(std::move(failures)) {}

void ComposedWork::finish(
    std::exception_ptr error,
    std::optional<int64_t> reduced_bytes) {
  const std::lock_guard lock(mutex_);
  reduced_bytes_ = reduced_bytes;
  error_ = std::move(error);
  finished_ns_ = steady_now_ns();
  finished_.notify_all();
}

void ComposedWork::wait() {
  std::exception_ptr failure;
  {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return finished_ns_ != 0; });
    failure = error_;
  }
  if (!failure) {
    if (last_)
      last_();
    last_ = nullptr;
    return;
  }
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    failures_->fail(record_, error);
  }
}

std::optional<int64_t> ComposedWork::reduced_bytes() {
  const std::lock_guard lock(mutex_);
  return reduced_bytes_;
}

int64_t ComposedWork::finished_ns() {
  const std::lock_guard lock(mutex_);
  return finished_ns_;
}

}  // namespace brigade
