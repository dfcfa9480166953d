#include "brigade/comm/composed_work.h"

#include <utility>

#include "brigade/comm/any_tensor.h"
#include "brigade/metrics/clock.h"

namespace brigade {

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
    std::weak_ptr<SequentialWorker> helped,
    std::function<void()> last,
    CollectiveRecord record,
    GroupFailuresPtr failures)
    : helped_(std::move(helped)),
      last_(std::move(last)),
      record_(record),
      failures_(std::move(failures)) {}

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
  if (finished_ns() == 0) {
    if (const auto worker = helped_.lock())
      worker->help_until([this] { return finished_ns() != 0; });
  }
  std::exception_ptr failure;
  {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return finished_ns_ != 0; });
    failure = error_;
  }
  try {
    if (failure)
      std::rethrow_exception(failure);
    const AnyTensorMode any_tensor;
    if (last_)
      last_();
    last_ = nullptr;
  } catch (const std::exception& error) {
    if (!failures_)
      throw;
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
