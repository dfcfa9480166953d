#include "brigade/comm/sequential_worker.h"

#include <utility>

namespace brigade {

SequentialWorker::SequentialWorker() : thread_([this] { run(); }) {}

SequentialWorker::~SequentialWorker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void SequentialWorker::submit(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void SequentialWorker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty())
      return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // frees its captures before the lock is taken again
    lock.lock();
  }
}

}  // namespace brigade
