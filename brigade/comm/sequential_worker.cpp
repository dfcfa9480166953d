#include "brigade/comm/sequential_worker.h"

#include <exception>
#include <utility>

#include "brigade/comm/any_tensor.h"
#include "brigade/comm/start/post_mortem.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

thread_local bool is_worker = false;

}  // namespace

SequentialWorker::SequentialWorker() : thread_([this] { run(); }) {}

SequentialWorker::~SequentialWorker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SequentialWorker::submit(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void SequentialWorker::run_first(std::unique_lock<std::mutex>& lock) {
  auto task = std::move(tasks_.front());
  tasks_.pop_front();
  is_running_ = true;
  lock.unlock();
  task();
  task = nullptr;  // frees its captures before the lock is taken again
  lock.lock();
  is_running_ = false;
  changed_.notify_all();
}

void SequentialWorker::help_until(const std::function<bool()>& is_done) {
  std::unique_lock lock(mutex_);
  while (!is_done()) {
    if (is_running_)
      changed_.wait(lock, [&] { return !is_running_ || is_done(); });
    else if (tasks_.empty())
      return;
    else
      run_first(lock);
  }
}

bool SequentialWorker::is_own_thread() {
  return is_worker;
}

void SequentialWorker::run() {
  is_worker = true;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] {
      return !is_running_ && (stopping_ || !tasks_.empty());
    });
    if (tasks_.empty())
      return;
    run_first(lock);
  }
}

// ---- a task as an operation

namespace {

class TaskWork : public Work {
 public:
  // `helped` is expired where the waiting thread does not help.
  TaskWork(
      std::weak_ptr<SequentialWorker> helped,
      const CollectiveRecord& record,
      GroupFailuresPtr failures)
      : helped_(std::move(helped)),
        record_(record),
        failures_(std::move(failures)) {}

  // Called on the thread that executes the task.
  void run(const std::function<std::optional<int64_t>()>& task) {
    const AnyTensorMode any_tensor;
    std::exception_ptr error;
    std::optional<int64_t> reduced_bytes;
    try {
      reduced_bytes = task();
    } catch (const std::exception& failure) {
      if (failures_)
        failures_->report(to_string(record_), failure);
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    reduced_bytes_ = reduced_bytes;
    error_ = std::move(error);
    finished_ns_ = steady_now_ns();
    finished_.notify_all();
  }

  void wait() override {
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
    if (!failure)
      return;
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      if (!failures_)
        throw;
      failures_->fail(record_, error);
    }
  }

  bool is_completed() override { return finished_ns() != 0; }

  int64_t finished_ns() override {
    const std::lock_guard lock(mutex_);
    return finished_ns_;
  }

  std::optional<int64_t> reduced_bytes() override {
    const std::lock_guard lock(mutex_);
    return reduced_bytes_;
  }

 private:
  std::weak_ptr<SequentialWorker> helped_;
  CollectiveRecord record_;
  GroupFailuresPtr failures_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::exception_ptr error_;
  std::optional<int64_t> reduced_bytes_;
  int64_t finished_ns_ = 0;
};

}  // namespace

WorkPtr launch_task(
    const std::shared_ptr<SequentialWorker>& worker,
    const CollectiveRecord& record,
    std::function<std::optional<int64_t>()> task,
    const TaskOptions& options) {
  std::weak_ptr<SequentialWorker> helped;
  if (options.waiting_helps)
    helped = worker;
  auto work =
      std::make_shared<TaskWork>(std::move(helped), record, options.failures);
  worker->submit([work, task = std::move(task)] { work->run(task); });
  return work;
}

}  // namespace brigade
