// One thread that runs tasks in the order of submission, one at a
// time. A thread that waits for one of them may run them in its place.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace brigade {

class SequentialWorker {
 public:
  SequentialWorker();
  // Runs what is queued, then joins.
  ~SequentialWorker();
  SequentialWorker(const SequentialWorker&) = delete;
  SequentialWorker& operator=(const SequentialWorker&) = delete;

  // The task must not throw.
  void submit(std::function<void()> task);

  // Runs queued tasks on the calling thread, in their order and never beside
  // another, until `is_done` or none is left. Spares the switch to a thread
  // and back, which costs more than a short message. Not from within a task.
  void help_until(const std::function<bool()>& is_done);

  // Whether the calling thread is some worker's own.
  static bool is_own_thread();

 private:
  void run();
  // Runs the first task; the lock is released meanwhile.
  void run_first(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_running_ = false;  // a task, on some thread
  bool stopping_ = false;
  std::thread thread_;  // last: starts when the rest is made
};

}  // namespace brigade
