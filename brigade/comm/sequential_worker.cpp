#include "brigade/comm/sequential_worker.h"

#include <utility>

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

}  // namespace brigade
