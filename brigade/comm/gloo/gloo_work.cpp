#include "brigade/comm/gloo/gloo_work.h"

#include <stdexcept>
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
  // Runs on the thread that completes it: notes the exact end, and reports that
  // this rank is there when its peers lose their connections to it.
  work_->getFuture()->addCallback(
      [finished = finished_ns_,
       operation = to_string(record_),
       post_mortem = failures_->post_mortem()](c10::ivalue::Future& future) {
        finished->store(steady_now_ns());
        if (future.hasError())
          post_mortem->report({}, operation);
      });
}

void NativeWork::wait() {
  try {
    work_->wait();
  } catch (const std::exception& error) {
    // Whatever its type: the collective did not come to its end.
    failures_->fail(record_, std::runtime_error(error.what()));
  }
  if (finished_ns_->load() == 0)
    finished_ns_->store(steady_now_ns());
}

bool NativeWork::is_completed() {
  return work_->isCompleted();
}

}  // namespace brigade
